// The selections of one cache group over a run, in memory: what page policies are compared on.
// Thread-safety: value type; the functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/sim/selection_generator.h"

namespace spindle::kv::sim {

class SelectionTrace {
 public:
  // Page ids are below num_pages, which grows with what is appended; the first warmup_steps are
  // simulated and not counted.
  SelectionTrace(uint32_t num_pages, uint32_t warmup_steps)
      : num_pages_(num_pages), warmup_steps_(warmup_steps) {}

  // REQUIRES: ascending, distinct.
  void Append(std::span<const uint32_t> pages);

  [[nodiscard]] uint32_t num_pages() const { return num_pages_; }

  [[nodiscard]] uint32_t warmup_steps() const { return warmup_steps_; }

  [[nodiscard]] uint32_t num_steps() const { return static_cast<uint32_t>(step_ends_.size()); }

  // Most pages of one step: the smallest capacity at which nothing is streamed.
  [[nodiscard]] uint32_t max_step_pages() const { return max_step_pages_; }

  [[nodiscard]] uint64_t num_accesses() const { return pages_.size(); }

  // Of steps that are counted.
  [[nodiscard]] uint64_t num_counted_accesses() const {
    return pages_.size() - step_begin(warmup_steps_);
  }

  [[nodiscard]] std::span<const uint32_t> step(uint32_t step) const {
    return std::span(pages_).subspan(step_begin(step), step_ends_[step] - step_begin(step));
  }

  // All accesses in order; step s begins at step_begin(s).
  [[nodiscard]] std::span<const uint32_t> accesses() const { return pages_; }

  [[nodiscard]] uint64_t step_begin(uint32_t step) const {
    return step == 0 ? 0 : step > num_steps() ? pages_.size() : step_ends_[step - 1];
  }

 private:
  uint32_t num_pages_;
  uint32_t warmup_steps_;
  uint32_t max_step_pages_ = 0;
  std::vector<uint32_t> pages_;
  std::vector<uint64_t> step_ends_;
};

// What the tables of docs/kv-simulator.md are made from.
inline constexpr uint32_t kTableSteps = 400;
inline constexpr uint32_t kTableWarmupSteps = 100;

// REQUIRES: those of SelectionGenerator.
[[nodiscard]] SelectionTrace MakeSyntheticTrace(const SelectionOptions& options,
                                                uint32_t num_steps,
                                                uint32_t warmup_steps);

// A reader that never comes back: `step_pages` new pages a step.
[[nodiscard]] SelectionTrace MakeScanTrace(uint32_t num_steps, uint32_t step_pages);

// One page a step, 0 … num_pages − 1 over and over; the first two rounds are warm-up. All kinds of
// LRU miss everything when one page does not fit, and nothing when all do.
[[nodiscard]] SelectionTrace MakeCyclicTrace(uint32_t num_pages, uint32_t num_rounds);

// Share of the counted accesses that are in the union of the `window` steps before.
[[nodiscard]] double OverlapWithWindow(const SelectionTrace& trace, uint32_t window);

}  // namespace spindle::kv::sim
