// Plain-loop logits kernels, the oracle of the tests.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/functions.h"

namespace spindle::kernels::reference {

LogitSummary Summarize(const float* logits, uint32_t n) {
  LogitSummary summary{-std::numeric_limits<float>::infinity(), -1, 0.0};
  for (uint32_t i = 0; i < n; ++i) {
    if (!std::isnan(logits[i]) && (summary.argmax < 0 || logits[i] > summary.max)) {
      summary.max = logits[i];
      summary.argmax = static_cast<int32_t>(i);
    }
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (logits[i] == summary.max) {
      summary.sum_exp += 1.0;  // also where the difference of two infinities would be NaN
    } else if (!std::isnan(logits[i])) {
      summary.sum_exp += std::exp(double{logits[i]} - double{summary.max});
    }
  }
  return summary;
}

uint32_t TopK(const float* logits, uint32_t n, uint32_t k, ScoredToken* out, ScoredToken* scratch) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (!std::isnan(logits[i])) {
      scratch[count++] = {logits[i], static_cast<int32_t>(i)};
    }
  }
  std::sort(scratch, scratch + count, [](const ScoredToken& a, const ScoredToken& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  });
  const uint32_t kept = std::min(k, count);
  std::copy(scratch, scratch + kept, out);
  return kept;
}

uint32_t CollectAtLeast(const float* logits, uint32_t n, float threshold, ScoredToken* out) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (logits[i] >= threshold) {
      out[count++] = {logits[i], static_cast<int32_t>(i)};
    }
  }
  return count;
}

}  // namespace spindle::kernels::reference
