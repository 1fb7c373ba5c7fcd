// Index stage of sparse attention: what is remembered of the keys of a partition, as one vector.
// Pure functions of the stored keys, so that an index can be shared and built again. A vector with
// an element that is no finite number is, in int8, no number altogether.
// Thread-safety: pure functions over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/api/index_vectors.h"

namespace spindle::kernels {

// Consecutive keys of one KV head inside one stripe. Lane j lies at
// k + (j div page_tokens) · page_bytes + (j mod page_tokens) · row bytes.
struct StripeKeys {
  const uint8_t* k;  // lane 0
  uint32_t page_tokens;
  size_t page_bytes;
  uint32_t head_dim;  // multiple of 16
  DType type;         // kBF16 or kF32
};

// The address of a lane's key.
[[nodiscard]] static inline const uint8_t* KeyOf(const StripeKeys& keys, uint32_t lane) {
  const size_t row_bytes = keys.head_dim * (keys.type == DType::kF32 ? sizeof(float) : 2U);
  return keys.k + lane / keys.page_tokens * keys.page_bytes + lane % keys.page_tokens * row_bytes;
}

// Channel-wise bounds of the keys of lanes [first_lane, first_lane + num_lanes):
// out = [max(head_dim) | min(head_dim)], rounded away from the keys, so that
// q⁺ · max + q⁻ · min ≥ q · k for each of them, whatever the vector's type. A NaN key makes NaN
// bounds.
struct KeyBoundsArgs {
  StripeKeys keys;
  uint32_t first_lane;
  uint32_t num_lanes;  // > 0
  VectorOut out;       // dim 2 · head_dim
};

// The mean of the keys of lanes [first_lane, first_lane + num_lanes), summed in ascending order and
// rounded once to the nearest that the vector's type has, and the smallest cosine between it
// (before rounding) and one of them; a mean or key of length 0 has cosine 0. A key that is no
// number makes both NaN.
struct KeyMeanArgs {
  StripeKeys keys;
  uint32_t first_lane;
  uint32_t num_lanes;   // > 0
  VectorOut mean;       // dim head_dim
  float* least_cosine;  // one number
};

}  // namespace spindle::kernels
