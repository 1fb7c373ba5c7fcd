// Learned gates of sparse attention (SeerAttention-R, arXiv 2506.08889): keys of a block and the
// queries of a KV head as they were before the rotation, and their product with small matrices.
// Thread-safety: pure functions over the caller's memory.
#pragma once

#include <cstdint>

#include "kernels/api/index.h"
#include "kernels/api/rope_append.h"

namespace spindle::kernels {

// The rotation that keys or queries have gone through, to be undone: x = Rᵀ y / factor², as cos and
// sin include the attention factor (YaRN).
struct HeadRotation {
  const float* cos;  // [positions][rope_dim / 2], from the first position that is asked for
  const float* sin;
  uint32_t rope_dim;  // even, ≤ head_dim; the rest was copied
  RopePairing pairing;
  float attention_factor;
};

// out = [max(head_dim) | min(head_dim) | mean(head_dim)] over lanes [0, num_lanes) of the keys
// before their rotation; sums are in ascending order. A function of the stored keys alone.
struct PoolKeysArgs {
  StripeKeys keys;
  uint32_t num_lanes;     // > 0
  HeadRotation rotation;  // from lane 0's position on
  float* out;             // [3 · head_dim]
};

// Heads of one position before their rotation.
struct UnrotateArgs {
  const float* heads;  // [num_heads][head_dim]
  uint32_t num_heads;
  uint32_t head_dim;  // multiple of 16, ≤ kMaxHeadDim
  HeadRotation rotation;
  float* out;  // [num_heads][head_dim], apart from `heads`
};

// out[j] = Σ_i x[i] · weights[i][j]; one fp32 sum per output, i ascending.
struct ProjectArgs {
  const float* x;           // [num_inputs]
  const uint16_t* weights;  // [num_inputs][num_outputs] bf16
  uint32_t num_inputs;
  uint32_t num_outputs;  // multiple of 16
  float* out;            // [num_outputs]
};

}  // namespace spindle::kernels
