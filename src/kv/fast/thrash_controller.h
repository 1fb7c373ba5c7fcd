// Pauses requests when the fast tier only moves pages back and forth, and resumes them. A state
// machine over counters of each step; whoever calls it drops the paused request's frames (its host
// copy stays) and brings them back. At most one decision per step.
// Thread-safety: thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace spindle::kv {

struct ThrashOptions {
  double max_refault_share = 0.5;     // refaults per fetch
  double max_link_utilisation = 0.8;  // of the way from the host
  uint32_t hot_steps = 16;            // both above for so long: pause somebody
  uint32_t min_state_steps = 16;      // nobody is paused or resumed sooner after the last time
  uint32_t max_paused_steps = 63;     // then it is resumed whatever the load: runs once in 64
  double resume_slack = 0.10;         // of the capacity that must stay free to resume early
};

// One step of all requests together.
struct ThrashSample {
  uint64_t refaults = 0;
  uint64_t fetches = 0;
  double link_utilisation = 0;  // 0 … 1
  uint64_t capacity_frames = 0;
};

struct ThrashRequest {
  uint32_t priority_class = 0;      // larger is less important
  uint64_t working_set_frames = 0;  // when paused: as it was
  bool is_paused = false;
  uint32_t steps_in_state = 0;  // since it was paused, resumed or admitted
};

class ThrashController {
 public:
  enum class Action : uint8_t { kNone, kPause, kResume };

  struct Decision {
    Action action = Action::kNone;
    uint32_t request = 0;  // index
  };

  explicit ThrashController(const ThrashOptions& options) : options_(options) {}

  // After a step. Pauses the least important request, among those the one with the largest working
  // set, never the last one that runs. Resumes the one paused longest.
  [[nodiscard]] Decision Step(const ThrashSample& sample, std::span<const ThrashRequest> requests);

  // Refaults per fetch of the last 16 steps.
  [[nodiscard]] double refault_share() const;

 private:
  static constexpr uint32_t kWindowSteps = 16;

  [[nodiscard]] std::optional<uint32_t> ToResume(const ThrashSample& sample,
                                                 std::span<const ThrashRequest> requests) const;
  [[nodiscard]] std::optional<uint32_t> ToPause(std::span<const ThrashRequest> requests) const;

  ThrashOptions options_;
  std::array<uint64_t, kWindowSteps> refaults_{};
  std::array<uint64_t, kWindowSteps> fetches_{};
  uint32_t next_ = 0;
  uint32_t hot_steps_ = 0;
};

}  // namespace spindle::kv
