// Belady's rule for one cache group: the victim is the page whose next use is farthest away.
// Optimal when no step has more pages than frames; beyond that the misses that are needed soonest
// get the frames. Internal to the simulator. Thread-safety: thread-compatible. Borrows the trace.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kv/sim/page_policy.h"

namespace spindle::kv::sim {

class Belady final : public PagePolicy {
 public:
  Belady(uint32_t capacity_pages, const SelectionTrace& trace);

  uint32_t Step(std::span<const uint32_t> pages, std::span<uint8_t> is_hit) override;

 private:
  static constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

  // A resident page and the step of its next use, as it was when the page was last used.
  using Candidate = std::pair<uint32_t, uint32_t>;  // (next step, page)

  // Evicts one page that is used after `step`.
  void EvictFarthest();

  const uint32_t capacity_;
  const SelectionTrace& trace_;
  std::vector<uint32_t> next_step_;    // [accesses] next use of the page of an access
  std::vector<uint32_t> page_next_;    // [num_pages] next use of a resident page
  std::vector<uint8_t> resident_;      // [num_pages]
  std::vector<Candidate> candidates_;  // heap; entries that do not agree with page_next_ are old
  std::vector<uint32_t> misses_;       // of the step, indices
  uint32_t num_resident_ = 0;
  uint32_t step_ = 0;
};

}  // namespace spindle::kv::sim
