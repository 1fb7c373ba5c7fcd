// Elements of stored index vectors, for tests that read what was built. Thread-safety: pure
// functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/api/index_vectors.h"
#include "kernels/codes.h"

namespace spindle::test {

// Of a vector in int8.
inline double ScaleOf(const kernels::VectorBlock& block, const uint8_t* data, uint32_t idx) {
  uint16_t half = 0;
  std::memcpy(&half, data + kernels::ScalesOffset(block) + 2 * size_t{idx}, sizeof(half));
  return double{kernels::Bf16ToFloat(half)};
}

// Element d of vector `idx` of a block.
inline double ElementOf(const kernels::VectorBlock& block,
                        const uint8_t* data,
                        uint32_t idx,
                        uint32_t d) {
  const uint8_t* const vector = data + idx * kernels::VectorBytes(block);
  if (block.type == kernels::IndexType::kInt8) {
    return static_cast<int8_t>(vector[d]) * ScaleOf(block, data, idx);
  }
  uint16_t half = 0;
  std::memcpy(&half, vector + 2 * size_t{d}, sizeof(half));
  return double{kernels::Bf16ToFloat(half)};
}

}  // namespace spindle::test
