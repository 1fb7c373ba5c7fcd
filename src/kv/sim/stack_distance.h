// The hit ratio of exact LRU at every capacity from one pass (Mattson 1970), with steps instead of
// single accesses: a page's distance is its place among all pages, youngest first, when its step
// begins. Pages of one step are equally young; the higher id counts as younger, as in the policy.
// Thread-safety: pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/sim/page_policy.h"
#include "kv/sim/selection_trace.h"

namespace spindle::kv::sim {

class MissRatioCurve {
 public:
  // Hits of a cache of this many pages, after the warm-up. REQUIRES: capacity ≥ min_capacity().
  [[nodiscard]] HitCount At(uint32_t capacity_pages) const;

  // Below the largest step pages are streamed, and one pass cannot tell what stays.
  [[nodiscard]] uint32_t min_capacity() const { return min_capacity_; }

  // From here on more frames gain nothing.
  [[nodiscard]] uint32_t max_useful_capacity() const {
    return static_cast<uint32_t>(hits_within_.size() - 1);
  }

 private:
  friend MissRatioCurve ComputeMissRatioCurve(const SelectionTrace& trace);

  uint64_t accesses_ = 0;
  uint32_t min_capacity_ = 1;
  std::vector<uint64_t> hits_within_ = {0};  // [distance] accesses of at most this distance
};

// O(log pages) per access.
[[nodiscard]] MissRatioCurve ComputeMissRatioCurve(const SelectionTrace& trace);

}  // namespace spindle::kv::sim
