// Softmax states of query rows, their merge and the final division; the same arithmetic in every
// kernel of a table. Thread-safety: pure functions over the caller's memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cpu/attention_simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// (M, L) or (m, l) of head rows, and their unnormalised sums.
struct States {
  float* m;    // [head rows]
  float* l;    // [head rows]
  float* acc;  // [head rows][head_dim]
};

SPINDLE_INLINE uint32_t RoundUp(uint32_t value) {
  return (value + kLanes - 1) / kLanes * kLanes;
}

// Hands out 64-byte aligned pieces of a worker's scratch.
class Arena {
 public:
  explicit Arena(const Exec& exec)
      : next_(static_cast<uint8_t*>(exec.scratch)), left_(exec.scratch_bytes) {}

  template <typename T>
  T* Take(size_t count) {
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (bytes > left_) {
      failed_ = true;
      return nullptr;
    }
    T* const taken = reinterpret_cast<T*>(next_);
    next_ += bytes;
    left_ -= bytes;
    return taken;
  }

  [[nodiscard]] bool failed() const { return failed_; }

 private:
  uint8_t* next_;
  size_t left_;
  bool failed_ = false;
};

// Merges one span's state of a row into the row's.
[[maybe_unused]] static inline void MergeRow(
    uint32_t d, const States& span, size_t from, const States& row, size_t to) {
  const float m =
      span.m[from] > row.m[to] || span.m[from] != span.m[from] ? span.m[from] : row.m[to];
  const float reference = m < kLowest ? kLowest : m;
  float factors[kLanes] = {};
  float exponents[kLanes] = {row.m[to] - reference, span.m[from] - reference};
  Store(factors, Exp2<6>(Load(exponents)));
  const F32x16 keep = Splat(factors[0]);
  const F32x16 add = Splat(factors[1]);
  for (uint32_t i = 0; i < d; i += kLanes) {
    float* const acc = row.acc + to * d + i;
    Store(acc, MulAdd(Load(span.acc + from * d + i), add, Mul(Load(acc), keep)));
  }
  float sums[kLanes] = {row.l[to]};
  float adds[kLanes] = {span.l[from]};
  Store(sums, MulAdd(Load(adds), add, Mul(Load(sums), keep)));
  row.l[to] = sums[0];
  row.m[to] = m;
}

// The state of a head row between passes: acc, M, L as in a partial.
SPINDLE_INLINE float* StateOf(const AttentionArgs& args,
                              const AttentionItem& item,
                              uint32_t row,
                              uint32_t head) {
  return item.state + (size_t{row} * args.group + head) * (args.head_dim + 2);
}

[[maybe_unused]] static inline void WriteHead(const AttentionArgs& args,
                                              const AttentionItem& item,
                                              uint32_t row,
                                              uint32_t head,
                                              float m,
                                              float l,
                                              const float* acc) {
  float* const out = item.out + row * args.out_stride + size_t{head} * args.head_dim;
  const bool empty = m == kMinusInf;
  const F32x16 inverse = Splat(empty ? 0.0F : 1.0F / l);
  for (uint32_t i = 0; i < args.head_dim; i += kLanes) {
    Store(out + i, MulAdd(Load(acc + i), inverse, Zero()));  // + 0: no negative zero
  }
  if (item.lse != nullptr) {
    item.lse[size_t{row} * args.group + head] = empty ? kMinusInf : (m + std::log2(l)) * kLn2;
  }
}

// Merges the item's last span into head row `at` of `merged`, divides and writes the output.
[[maybe_unused]] static inline void FinishHead(const AttentionArgs& args,
                                               const AttentionItem& item,
                                               uint32_t row,
                                               uint32_t head,
                                               const States& merged,
                                               size_t at) {
  const uint32_t d = args.head_dim;
  if (item.last_span != nullptr) {
    float* const last = item.last_span + (size_t{row} * args.group + head) * (d + 2);
    MergeRow(d, {last + d, last + d + 1, last}, 0, merged, at);
  }
  WriteHead(args, item, row, head, merged.m[at], merged.l[at], merged.acc + at * d);
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
