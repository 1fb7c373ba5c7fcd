#include "kv/fast/thrash_controller.h"

#include <numeric>

namespace spindle::kv {

double ThrashController::refault_share() const {
  const uint64_t fetches = std::accumulate(fetches_.begin(), fetches_.end(), uint64_t{0});
  const uint64_t refaults = std::accumulate(refaults_.begin(), refaults_.end(), uint64_t{0});
  return fetches == 0 ? 0 : static_cast<double>(refaults) / static_cast<double>(fetches);
}

ThrashController::Decision ThrashController::Step(const ThrashSample& sample,
                                                  std::span<const ThrashRequest> requests) {
  refaults_[next_] = sample.refaults;
  fetches_[next_] = sample.fetches;
  next_ = (next_ + 1) % kWindowSteps;
  const bool is_hot = refault_share() > options_.max_refault_share &&
                      sample.link_utilisation > options_.max_link_utilisation;
  hot_steps_ = is_hot ? hot_steps_ + 1 : 0;
  if (const std::optional<uint32_t> request = ToResume(sample, requests)) {
    return {Action::kResume, *request};
  }
  if (hot_steps_ >= options_.hot_steps) {
    if (const std::optional<uint32_t> request = ToPause(requests)) {
      hot_steps_ = 0;
      return {Action::kPause, *request};
    }
  }
  return {};
}

std::optional<uint32_t> ThrashController::ToResume(const ThrashSample& sample,
                                                   std::span<const ThrashRequest> requests) const {
  std::optional<uint32_t> longest;
  uint64_t running = 0;
  for (uint32_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].is_paused) {
      running += requests[i].working_set_frames;
    } else if (!longest || requests[i].steps_in_state > requests[*longest].steps_in_state) {
      longest = i;
    }
  }
  if (!longest || requests[*longest].steps_in_state < options_.min_state_steps) {
    return std::nullopt;
  }
  const double usable = (1 - options_.resume_slack) * static_cast<double>(sample.capacity_frames);
  const auto together = static_cast<double>(running + requests[*longest].working_set_frames);
  const bool is_due = requests[*longest].steps_in_state >= options_.max_paused_steps;
  return is_due || together <= usable ? longest : std::nullopt;
}

std::optional<uint32_t> ThrashController::ToPause(std::span<const ThrashRequest> requests) const {
  std::optional<uint32_t> chosen;
  uint32_t num_running = 0;
  for (uint32_t i = 0; i < requests.size(); ++i) {
    if (requests[i].is_paused) {
      continue;
    }
    ++num_running;
    if (requests[i].steps_in_state < options_.min_state_steps) {
      continue;
    }
    if (!chosen || requests[i].priority_class > requests[*chosen].priority_class ||
        (requests[i].priority_class == requests[*chosen].priority_class &&
         requests[i].working_set_frames > requests[*chosen].working_set_frames)) {
      chosen = i;
    }
  }
  return num_running > 1 ? chosen : std::nullopt;
}

}  // namespace spindle::kv
