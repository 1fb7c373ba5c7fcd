// Estimate of XAttention (arXiv 2503.16428): how the attention of a block of query rows spreads
// over blocks of keys, from sums of scores along the antidiagonals of small tiles. Thread-safety:
// pure functions over the caller's memory.
//
// For tiles of stride × stride, row R of tiles and column C ≤ R:
//   z[R,C] = Σ_i q[stride · R + stride - 1 - i] · k[stride · C + i],  i = 0 … stride - 1
//   x[R,C] = cap(scale · z[R,C] / stride), cap(x) = softcap · tanh(x / softcap) if there is one
//   A[R,:] = softmax of x[R,:] over C ≤ R
// and mass[J] is the sum of A[R,C] over the rows R of the query block and the columns C of key
// block J. A row of tiles is a strip of stride · head_dim consecutive key elements, which are read
// where they lie, once for all heads of a group as far as scratch allows: 1 / stride of the
// products of q · k, and of the bytes of a block's attention at most an eighth.
//
// Arithmetic: z is one fp32 sum, i then the channel ascending, with rows of q rounded to bf16 where
// the keys are bf16; every other sum is in fp32, in an order that only depends on the block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/index.h"

namespace spindle::kernels {

inline constexpr uint32_t kMassBlockTokens = 128;

// The rows of query block `block`, positions [128 · block, 128 · block + 128), of one KV head.
struct BlockMassArgs {
  const float* q;  // [128][q_stride]: `group` heads × head_dim, rotated, not scaled
  size_t q_stride;
  uint32_t group;                 // 1 … kMaxGroup
  const uint8_t* const* stripes;  // [2 · block + 2], of 64 tokens, position order
  uint64_t offset;                // bytes from a stripe's address to the head's first key
  StripeKeys layout;              // of a stripe; its `k` is not looked at
  uint32_t block;
  uint32_t stride;  // 8 or 16
  float scale;      // of q·k, > 0
  float softcap;    // of scaled scores; 0: none
  float* mass;  // [group][block + 1]; each head's sum is 128 / stride, NaN where a score is none
};

}  // namespace spindle::kernels
