// Splits the rows of a QKV product, adds bias, normalises heads (Qwen3), rotates q and k, and
// writes k and v into their KV slots. Work unit = one token row. Thread-safety: pure functions over
// the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/api/exec.h"

namespace spindle::kernels {

enum class RopePairing : uint8_t {
  kHalfSplit,  // pairs (i, i + rope_dim/2): Hugging Face weights, GGUF Qwen
  kAdjacent,   // pairs (2i, 2i + 1): GGUF Llama-family files
};

// Where one token's key and value of KV head 0 go; head h is `head_stride_bytes` further. Null = do
// not store.
struct KvSlot {
  uint8_t* k;
  uint8_t* v;
};

struct RopeAppendArgs {
  const float* q;   // [num_rows][q_stride]: num_q_heads × head_dim, raw product
  const float* k;   // [num_rows][k_stride]: num_kv_heads × head_dim
  const float* v;   // [num_rows][v_stride]
  size_t q_stride;  // floats; likewise below
  size_t k_stride;
  size_t v_stride;
  const float* q_norm;  // [head_dim] or null: RMS norm of each head before the rotation
  const float* k_norm;  // [head_dim] or null
  float norm_eps;
  const float* rope_cos;  // [max_positions][rope_dim / 2], attention factor included
  const float* rope_sin;
  const int32_t* positions;  // [num_rows]
  const KvSlot* slots;       // [num_rows]
  size_t head_stride_bytes;
  float* q_out;  // [num_rows][q_out_stride]; may alias q
  size_t q_out_stride;
  uint32_t num_rows;
  uint32_t num_q_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t rope_dim;  // even, ≤ head_dim; the rest is copied
  RopePairing pairing;
  DType kv_type;  // kBF16 or kF32
};

}  // namespace spindle::kernels
