// Kernels over a row of logits. NaN never passes: Max(x, m) gives m for a NaN x, and no comparison
// with one holds.
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/top_k.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {
namespace {

constexpr uint32_t kScan = 64;        // entries tested together for a rare hit
constexpr uint32_t kSumVectors = 32;  // vectors added in fp32 before the sum goes on in double
constexpr uint32_t kBlocksPerRank =
    4;  // block maxima per wanted entry; more make the bound of TopK sharper

// Entries [i, i + 16), those past n as -inf.
SPINDLE_INLINE F32x16 LoadPadded(const float* logits, uint32_t i, uint32_t n) {
  if (i + kLanes <= n) {
    return Load(logits + i);
  }
  float padded[kLanes];
  for (uint32_t j = 0; j < kLanes; ++j) {
    padded[j] = i + j < n ? logits[i + j] : kMinusInf;
  }
  return Load(padded);
}

float MaxOf(const float* logits, uint32_t n) {
  F32x16 m[4] = {Splat(kMinusInf), Splat(kMinusInf), Splat(kMinusInf), Splat(kMinusInf)};
  for (uint32_t i = 0; i < n; i += 4 * kLanes) {
    for (uint32_t v = 0; v < 4; ++v) {
      const uint32_t at = i + v * kLanes;
      m[v] = at < n ? Max(LoadPadded(logits, at, n), m[v]) : m[v];
    }
  }
  return ReduceMax(Max(Max(m[0], m[1]), Max(m[2], m[3])));
}

// Whether any of `count` ≤ 64 entries is at least `threshold`; vectorised by the compiler.
SPINDLE_INLINE bool AnyAtLeast(const float* logits, uint32_t count, float threshold) {
  uint32_t any = 0;
  for (uint32_t j = 0; j < count; ++j) {
    any |= logits[j] >= threshold ? 1U : 0U;
  }
  return any != 0;
}

// Σ exp(logit - max) for a finite maximum.
double SumOfExponentials(const float* logits, uint32_t n, float max) {
  const F32x16 shift = Splat(max);
  const F32x16 scale = Splat(kLog2E);
  double total = 0;
  for (uint32_t begin = 0; begin < n; begin += kSumVectors * kLanes) {
    F32x16 sum = Zero();
    for (uint32_t i = begin; i < n && i < begin + kSumVectors * kLanes; i += kLanes) {
      const F32x16 x = Max(LoadPadded(logits, i, n), Splat(kMinusInf));
      sum = Add(sum, Exp2<6>(Mul(Sub(x, shift), scale)));
    }
    total += static_cast<double>(ReduceAdd(sum));
  }
  return total;
}

}  // namespace

LogitSummary Summarize(const float* logits, uint32_t n) {
  LogitSummary summary{MaxOf(logits, n), -1, 0.0};
  for (uint32_t i = 0; i < n && summary.argmax < 0; i += kScan) {
    const uint32_t count = n - i < kScan ? n - i : kScan;
    if (!AnyAtLeast(logits + i, count, summary.max)) {
      continue;
    }
    uint32_t j = i;
    while (!(logits[j] >= summary.max)) {
      ++j;
    }
    summary.argmax = static_cast<int32_t>(j);
  }
  if (summary.argmax < 0) {
    return summary;
  }
  if (summary.max - summary.max == 0) {
    summary.sum_exp = SumOfExponentials(logits, n, summary.max);
    return summary;
  }
  for (uint32_t i = 0; i < n; ++i) {  // an infinite maximum: everything below it has weight 0
    summary.sum_exp += logits[i] == summary.max ? 1.0 : 0.0;
  }
  return summary;
}

uint32_t CollectAtLeast(const float* logits, uint32_t n, float threshold, ScoredToken* out) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < n; i += kScan) {
    const uint32_t count = n - i < kScan ? n - i : kScan;
    if (!AnyAtLeast(logits + i, count, threshold)) {
      continue;
    }
    for (uint32_t j = i; j < i + count; ++j) {
      if (logits[j] >= threshold) {
        out[found++] = {logits[j], static_cast<int32_t>(j)};
      }
    }
  }
  return found;
}

// Blocks of strided entries; the k-th largest block maximum is a lower bound of the k-th largest
// entry, and few entries pass it.
uint32_t TopK(const float* logits, uint32_t n, uint32_t k, ScoredToken* out, ScoredToken* scratch) {
  if (k == 0) {
    return 0;
  }
  float bound = kMinusInf;
  const uint64_t per_block = n / (uint64_t{kBlocksPerRank} * k);
  if (per_block >= 2) {
    float* const maxima = reinterpret_cast<float*>(scratch);
    uint32_t num_maxima = 0;
    const uint32_t step = static_cast<uint32_t>(per_block < 64 ? per_block : 64) * kLanes;
    for (uint32_t begin = 0; begin < n; begin += step) {
      F32x16 m = Splat(kMinusInf);
      for (uint32_t i = begin; i < n && i - begin < step; i += kLanes) {
        m = Max(LoadPadded(logits, i, n), m);
      }
      Store(maxima + num_maxima, m);
      num_maxima += kLanes;
    }
    bound = k <= num_maxima ? KthLargest(maxima, num_maxima, k) : kMinusInf;
  }
  const uint32_t count = CollectAtLeast(logits, n, bound, scratch);
  const uint32_t kept = k < count ? k : count;
  SelectTop(scratch, count, kept, out);
  return kept;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
