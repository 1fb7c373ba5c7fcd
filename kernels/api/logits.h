// Kernels over one row of logits, for sampling: all O(n) in one or two passes, no sort.
// Thread-safety: pure functions over the caller's memory. Order of equal logits: the lower id wins;
// NaN sorts last.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spindle::kernels {

struct ScoredToken {
  float logit;
  int32_t id;
};

struct LogitSummary {
  float max;       // -inf for an empty or all-NaN row
  int32_t argmax;  // lowest id of the maximum; -1 for an all-NaN row
  double sum_exp;  // Σ exp(logit - max) over non-NaN entries, in a fixed order; entries equal to
                   // max count 1
};

}  // namespace spindle::kernels
