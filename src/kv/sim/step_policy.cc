#include "kv/sim/step_policy.h"

namespace spindle::kv::sim {

uint32_t StepPolicy::Step(std::span<const uint32_t> pages, std::span<uint8_t> is_hit) {
  ++step_;
  uint32_t hits = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    pinned_step_[pages[i]] = step_;
    is_hit[i] = resident_[pages[i]];
    hits += is_hit[i];
  }
  BeginStep();
  for (size_t i = 0; i < pages.size(); ++i) {
    if (is_hit[i] != 0) {
      OnHit(pages[i]);
    }
  }
  uint32_t num_pinned = hits;
  for (size_t i = 0; i < pages.size() && hits < pages.size(); ++i) {
    const uint32_t page = pages[i];
    if (is_hit[i] != 0) {
      continue;
    }
    if (num_resident_ == capacity_) {
      if (num_pinned == capacity_) {
        break;  // this one and the others are streamed
      }
      resident_[ChooseVictim(page)] = 0;
      --num_resident_;
    }
    resident_[page] = 1;
    ++num_resident_;
    ++num_pinned;
    OnInsert(page);
  }
  EndStep(pages, is_hit);
  return hits;
}

}  // namespace spindle::kv::sim
