#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <functional>

namespace spindle::kernels {

float KthLargest(float* values, uint32_t n, uint32_t k) {
  std::nth_element(values, values + (k - 1), values + n, std::greater<>());
  return values[k - 1];
}

void SelectTop(ScoredToken* candidates, uint32_t count, uint32_t k, ScoredToken* out) {
  const auto better = [](const ScoredToken& a, const ScoredToken& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  if (k < count) {
    std::nth_element(candidates, candidates + k, candidates + count, better);
  }
  std::sort(candidates, candidates + k, better);
  std::copy(candidates, candidates + k, out);
}

}  // namespace spindle::kernels
