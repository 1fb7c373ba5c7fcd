// What the attention of one layer needs to know about the model: shapes, positions, scale, masks.
// Built once by model, read by sparse. Thread-safety: immutable after construction. Borrows the
// RoPE table and norm weights from the model.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/api/rope_append.h"

namespace spindle::tensor {

// cos and sin per position and pair, attention factor (YaRN) included: fp32
// [max_positions][rope_dim / 2].
struct RopeTable {
  uint32_t max_positions = 0;
  uint32_t rope_dim = 0;
  float attention_factor = 1.0F;  // already in cos and sin; inverse rotation divides by its square
  std::vector<float> cos;
  std::vector<float> sin;
};

struct AttentionSpec {
  uint32_t num_q_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  float scale = 0.0F;    // of q·k
  float softcap = 0.0F;  // 0 = none
  uint32_t window = 0;   // sliding window in tokens, 0 = full attention
  kernels::RopePairing pairing = kernels::RopePairing::kHalfSplit;
  const RopeTable* rope = nullptr;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float norm_eps = 0.0F;

  [[nodiscard]] uint32_t group() const { return num_q_heads / num_kv_heads; }
};

}  // namespace spindle::tensor
