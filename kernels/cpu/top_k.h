// Selection steps of top-k that gain nothing from wide registers; compiled once, outside the
// per-ISA objects, because they instantiate library templates (see base/dtype.h). Thread-safety:
// pure functions over the caller's memory.
#pragma once

#include <cstdint>

#include "kernels/api/logits.h"

namespace spindle::kernels {

// The k-th largest of n values, which are reordered. REQUIRES: 1 ≤ k ≤ n, no NaN. O(n).
float KthLargest(float* values, uint32_t n, uint32_t k);

// The k best of `candidates` (reordered), best first: logit descending, id ascending. O(count + k
// log k).
//   REQUIRES: k ≤ count, no NaN
void SelectTop(ScoredToken* candidates, uint32_t count, uint32_t k, ScoredToken* out);

}  // namespace spindle::kernels
