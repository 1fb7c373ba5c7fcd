// Vectors of an index, written and read sixteen elements at a time. Thread-safety: pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/api/index_vectors.h"
#include "kernels/codes.h"
#include "kernels/cpu/attention_simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// Which stored neighbour stands for a value between two.
enum class Rounding : uint8_t { kNearest, kUp, kDown };

// `stored` is on the wrong side of the value.
template <Rounding kRounding>
SPINDLE_INLINE bool Misses(float stored, float value) {
  return kRounding == Rounding::kUp ? stored < value : stored > value;
}

// 16 values as bf16; NaN stays NaN.
template <Rounding kRounding>
SPINDLE_INLINE void WriteHalves(const float* values, uint8_t* to) {
  if constexpr (kRounding == Rounding::kNearest) {
    StoreBf16(to, Load(values));
    return;
  }
  for (uint32_t i = 0; i < kLanes; ++i) {
    uint16_t half = FloatToBf16(values[i]);
    if (Misses<kRounding>(Bf16ToFloat(half), values[i])) {
      // One step away from zero or towards it, whichever is the wanted direction.
      const bool grows = (values[i] > 0) == (kRounding == Rounding::kUp);
      half = static_cast<uint16_t>(grows ? half + 1 : half - 1);
    }
    __builtin_memcpy(to + i * sizeof(half), &half, sizeof(half));
  }
}

// 16 values as codes. A code times the scale is exact, so whether it misses is certain; the next
// one does not, as no value is beyond the largest code.
template <Rounding kRounding>
SPINDLE_INLINE void WriteCodes(const float* values, float scale, uint8_t* to) {
  const I32x16 nearest = ToNearestInt(Div(Load(values), Splat(scale)));
  StoreS8(to, nearest);
  if constexpr (kRounding != Rounding::kNearest) {
    float stored[kLanes];
    Store(stored, Mul(ToFloat(nearest), Splat(scale)));
    for (uint32_t i = 0; i < kLanes; ++i) {
      const int step = kRounding == Rounding::kUp ? 1 : -1;
      to[i] = static_cast<uint8_t>(to[i] + (Misses<kRounding>(stored[i], values[i]) ? step : 0));
    }
  }
}

// The smallest scale that the largest code reaches all values with. NaN where one of them is no
// finite number.
SPINDLE_INLINE uint16_t ScaleOf(const float* values, uint32_t dim) {
  uint32_t bits = 0;
  for (uint32_t d = 0; d < dim; d += kLanes) {
    const F32x16 x = Load(values + d);
    const uint32_t of = MaxMagnitudeBits(x, x);
    bits = of > bits ? of : bits;
  }
  const float largest = bits < 0x7F800000U ? std::bit_cast<float>(bits) : __builtin_nanf("");
  uint16_t half = FloatToBf16(largest / kMaxIndexCode);
  if (Bf16ToFloat(half) * kMaxIndexCode < largest) {
    ++half;
  }
  return half;
}

template <Rounding kRounding>
SPINDLE_INLINE void WriteElements(
    IndexType type, const float* values, uint32_t begin, uint32_t end, float scale, uint8_t* to) {
  for (uint32_t d = begin; d < end; d += kLanes) {
    if (type == IndexType::kInt8) {
      WriteCodes<kRounding>(values + d, scale, to + d);
    } else {
      WriteHalves<kRounding>(values + d, to + d * sizeof(uint16_t));
    }
  }
}

// Of int8 vectors the scale comes first: without one there are no codes.
SPINDLE_INLINE bool WriteScale(const VectorOut& out, const float* values, float* scale) {
  if (out.block.type != IndexType::kInt8) {
    return true;
  }
  const uint16_t half = ScaleOf(values, out.block.dim);
  __builtin_memcpy(
      out.data + ScalesOffset(out.block) + out.idx * sizeof(half), &half, sizeof(half));
  *scale = Bf16ToFloat(half);
  if (*scale > 0) {
    return true;
  }
  __builtin_memset(out.data + out.idx * VectorBytes(out.block), 0, VectorBytes(out.block));
  return false;
}

// values [dim], each as near as the type allows.
SPINDLE_INLINE void WriteVector(const VectorOut& out, const float* values) {
  float scale = 0;
  if (WriteScale(out, values, &scale)) {
    uint8_t* const to = out.data + out.idx * VectorBytes(out.block);
    WriteElements<Rounding::kNearest>(out.block.type, values, 0, out.block.dim, scale, to);
  }
}

// values [upper(dim / 2) | lower(dim / 2)], each rounded away from what lies between.
SPINDLE_INLINE void WriteBounds(const VectorOut& out, const float* values) {
  float scale = 0;
  if (WriteScale(out, values, &scale)) {
    const uint32_t dim = out.block.dim;
    uint8_t* const to = out.data + out.idx * VectorBytes(out.block);
    WriteElements<Rounding::kUp>(out.block.type, values, 0, dim / 2, scale, to);
    WriteElements<Rounding::kDown>(out.block.type, values, dim / 2, dim, scale, to);
  }
}

// Elements d … d + 15 of a vector, less its scale.
template <IndexType kType>
SPINDLE_INLINE F32x16 LoadVector(const uint8_t* vector, uint32_t d) {
  if constexpr (kType == IndexType::kInt8) {
    return LoadS8(vector + d);
  } else {
    return LoadBf16(vector + 2 * size_t{d});
  }
}

// What LoadVector leaves out.
template <IndexType kType>
SPINDLE_INLINE float ScaleOfVector(const VectorBlock& block, const uint8_t* data, uint32_t idx) {
  if constexpr (kType == IndexType::kInt8) {
    uint16_t half;
    __builtin_memcpy(&half, data + ScalesOffset(block) + idx * sizeof(half), sizeof(half));
    return Bf16ToFloat(half);
  } else {
    return 1.0F;
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
