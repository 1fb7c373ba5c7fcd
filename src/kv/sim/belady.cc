#include "kv/sim/belady.h"

#include <algorithm>

#include "base/status_macros.h"

namespace spindle::kv::sim {

Belady::Belady(uint32_t capacity_pages, const SelectionTrace& trace)
    : capacity_(capacity_pages),
      trace_(trace),
      next_step_(trace.num_accesses()),
      page_next_(trace.num_pages(), kNever),
      resident_(trace.num_pages()) {
  std::vector<uint32_t>& upcoming = page_next_;  // until the run begins
  for (uint32_t step = trace.num_steps(); step-- > 0;) {
    const std::span<const uint32_t> pages = trace.step(step);
    for (size_t i = 0; i < pages.size(); ++i) {
      next_step_[trace.step_begin(step) + i] = upcoming[pages[i]];
      upcoming[pages[i]] = step;
    }
  }
}

void Belady::EvictFarthest() {
  while (true) {
    std::pop_heap(candidates_.begin(), candidates_.end());
    const auto [next, page] = candidates_.back();
    candidates_.pop_back();
    if (resident_[page] != 0 && page_next_[page] == next) {
      resident_[page] = 0;
      --num_resident_;
      return;
    }
  }
}

uint32_t Belady::Step(std::span<const uint32_t> pages, std::span<uint8_t> is_hit) {
  SPINDLE_CHECK(step_ < trace_.num_steps() && pages.size() == trace_.step(step_).size());
  const uint64_t begin = trace_.step_begin(step_);
  misses_.clear();
  for (uint32_t i = 0; i < pages.size(); ++i) {
    is_hit[i] = resident_[pages[i]];
    if (is_hit[i] == 0) {
      misses_.push_back(i);
    }
  }
  const auto hits = static_cast<uint32_t>(pages.size() - misses_.size());
  // The pages of this step are still listed with this step as their next use, so others go first.
  const uint32_t room = capacity_ - hits;
  if (misses_.size() > room) {
    std::stable_sort(misses_.begin(), misses_.end(), [this, begin](uint32_t a, uint32_t b) {
      return next_step_[begin + a] < next_step_[begin + b];
    });
    misses_.resize(room);
  }
  while (num_resident_ + misses_.size() > capacity_) {
    EvictFarthest();
  }
  for (const uint32_t i : misses_) {
    resident_[pages[i]] = 1;
  }
  num_resident_ += static_cast<uint32_t>(misses_.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    if (resident_[pages[i]] != 0) {
      page_next_[pages[i]] = next_step_[begin + i];
      candidates_.emplace_back(page_next_[pages[i]], pages[i]);
      std::push_heap(candidates_.begin(), candidates_.end());
    }
  }
  ++step_;
  return hits;
}

}  // namespace spindle::kv::sim
