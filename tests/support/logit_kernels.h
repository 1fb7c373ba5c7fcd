// Naive logit kernels: full sorts and plain loops, independent of the product's kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/registry.h"

namespace spindle::testing {

inline std::vector<kernels::ScoredToken> SortedTokens(const float* logits, uint32_t n) {
  std::vector<kernels::ScoredToken> all;
  for (uint32_t i = 0; i < n; ++i) {
    if (!std::isnan(logits[i])) {
      all.push_back({logits[i], static_cast<int32_t>(i)});
    }
  }
  std::stable_sort(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.logit > b.logit; });
  return all;
}

// Only the logit functions are set; arrangements that allocate are fine in a reference.
inline const kernels::KernelTable& NaiveLogitKernels() {
  static const kernels::KernelTable table = [] {
    kernels::KernelTable t{};
    t.isa = kernels::Isa::kReference;
    t.name = "naive";
    t.summarize = [](const float* logits, uint32_t n) {
      kernels::LogitSummary summary{-std::numeric_limits<float>::infinity(), -1, 0.0};
      for (uint32_t i = 0; i < n; ++i) {
        if (!std::isnan(logits[i]) && (summary.argmax < 0 || logits[i] > summary.max)) {
          summary.max = logits[i];
          summary.argmax = static_cast<int32_t>(i);
        }
      }
      for (uint32_t i = 0; i < n; ++i) {
        if (!std::isnan(logits[i])) {
          summary.sum_exp +=
              std::exp(static_cast<double>(logits[i]) - static_cast<double>(summary.max));
        }
      }
      return summary;
    };
    t.top_k = [](const float* logits,
                 uint32_t n,
                 uint32_t k,
                 kernels::ScoredToken* out,
                 kernels::ScoredToken* scratch) {
      uint32_t count = 0;
      for (uint32_t i = 0; i < n; ++i) {
        if (!std::isnan(logits[i])) {
          scratch[count++] = {logits[i], static_cast<int32_t>(i)};
        }
      }
      std::sort(scratch, scratch + count, [](const auto& a, const auto& b) {
        return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
      });
      const uint32_t taken = std::min(k, count);
      std::copy(scratch, scratch + taken, out);
      return taken;
    };
    return t;
  }();
  return table;
}

}  // namespace spindle::testing
