#include "kv/sim/selection_generator.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/status_macros.h"

namespace spindle::kv::sim {
namespace {

// A shift of topic draws this part of the pages again …
constexpr uint32_t kShiftedPart = 16;
// … and raises so many neighbours by so much.
constexpr uint32_t kRaisedPages = 32;
constexpr double kRaise = 2.0;

}  // namespace

std::optional<SelectionProfile> FindSelectionProfile(std::string_view name) {
  if (name == "sticky") {
    return kStickyProfile;
  }
  if (name == "medium") {
    return kMediumProfile;
  }
  if (name == "loose") {
    return kLooseProfile;
  }
  return std::nullopt;
}

SelectionGenerator::SelectionGenerator(const SelectionOptions& options)
    : profile_(options.profile),
      selected_pages_(options.selected_pages),
      random_(options.seed, options.stream) {
  SPINDLE_CHECK(selected_pages_ >= 1 && selected_pages_ <= options.num_pages);
  Grow(options.num_pages);
}

void SelectionGenerator::Grow(uint32_t num_pages) {
  SPINDLE_CHECK(num_pages >= fixed_.size());
  const size_t old_pages = fixed_.size();
  fixed_.resize(num_pages);
  drift_.resize(num_pages);
  scores_.resize(num_pages);
  ranked_.resize(num_pages);
  for (size_t page = old_pages; page < num_pages; ++page) {
    const double size = std::abs(random_.Normal());
    fixed_[page] = profile_.fixed_weight * (size * std::sqrt(size));
  }
  for (size_t page = old_pages; page < num_pages; ++page) {
    drift_[page] = random_.Normal();
  }
}

void SelectionGenerator::ShiftTopic() {
  const uint32_t span = std::max(1U, num_pages() / kShiftedPart);
  uint64_t begin = random_.Below(num_pages() - span + 1);
  for (uint64_t page = begin; page < begin + span; ++page) {
    drift_[page] = random_.Normal();
  }
  const uint32_t run = std::min(kRaisedPages, num_pages());
  begin = random_.Below(num_pages() - run + 1);
  for (uint64_t page = begin; page < begin + run; ++page) {
    drift_[page] += kRaise;
  }
}

void SelectionGenerator::Next(std::vector<uint32_t>* pages) {
  const double rho = profile_.drift_correlation;
  const double innovation = std::sqrt(1.0 - rho * rho);
  for (double& drift : drift_) {
    drift = rho * drift + innovation * random_.Normal();
  }
  if (random_.Uniform() < profile_.shift_probability) {
    ShiftTopic();
  }
  for (size_t page = 0; page < scores_.size(); ++page) {
    scores_[page] = fixed_[page] + profile_.drift_weight * drift_[page] +
                    profile_.noise_weight * random_.Normal();
  }
  // Above the k-th largest score all, at it (ties) the lowest ids.
  ranked_ = scores_;
  const auto kth = ranked_.begin() + (selected_pages_ - 1);
  std::nth_element(ranked_.begin(), kth, ranked_.end(), std::greater<>());
  const double threshold = *kth;
  auto at_threshold = static_cast<uint32_t>(
      selected_pages_ -
      std::count_if(ranked_.begin(), kth, [threshold](double score) { return score > threshold; }));
  pages->clear();
  for (uint32_t page = 0; page < num_pages(); ++page) {
    if (scores_[page] > threshold) {
      pages->push_back(page);
    } else if (scores_[page] == threshold && at_threshold > 0) {
      pages->push_back(page);
      --at_threshold;
    }
  }
}

std::vector<uint32_t> DrawSelections(const SelectionOptions& options,
                                     uint32_t num_steps,
                                     uint32_t num_groups) {
  const size_t selected = options.selected_pages;
  std::vector<uint32_t> all(size_t{num_steps} * num_groups * selected);
  std::vector<uint32_t> pages;
  for (uint32_t group = 0; group < num_groups; ++group) {
    SelectionOptions of_group = options;
    of_group.stream += group;
    SelectionGenerator generator(of_group);
    for (uint32_t step = 0; step < num_steps; ++step) {
      generator.Next(&pages);
      std::copy(pages.begin(),
                pages.end(),
                all.begin() +
                    static_cast<std::ptrdiff_t>((size_t{step} * num_groups + group) * selected));
    }
  }
  return all;
}

}  // namespace spindle::kv::sim
