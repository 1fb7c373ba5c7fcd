#include "kernels/reference/index_vectors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/codes.h"

namespace spindle::kernels::reference {
namespace {

constexpr int kMaxCode = static_cast<int>(kMaxIndexCode);

uint16_t Truncated(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

// The first bf16 that is at least (at most) `value`, searched upwards from the truncated one.
uint16_t Bound(float value, bool is_upper) {
  if (std::isnan(value)) {
    return FloatToBf16(value);
  }
  const uint16_t truncated = Truncated(value);
  const float towards_zero = Bf16ToFloat(truncated);
  const bool holds = is_upper ? towards_zero >= value : towards_zero <= value;
  return holds ? truncated : static_cast<uint16_t>(truncated + 1);  // one step away from zero
}

uint16_t Half(float value, Rounding rounding) {
  return rounding == Rounding::kNearest ? FloatToBf16(value)
                                        : Bound(value, rounding == Rounding::kUp);
}

// The smallest that the largest code reaches every value with; NaN where one is no finite number.
uint16_t ScaleOf(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return FloatToBf16(std::nanf(""));
    }
    largest = std::max(largest, std::abs(value));
  }
  uint16_t half = Truncated(largest / kMaxIndexCode);
  while (double{Bf16ToFloat(half)} * kMaxCode < double{largest}) {
    ++half;
  }
  return half;
}

// The first code from below that is not too small; the nearest one, ties to even ones.
int8_t CodeOf(double value, double scale, Rounding rounding) {
  if (rounding == Rounding::kNearest) {
    return static_cast<int8_t>(std::nearbyint(value / scale));
  }
  if (rounding == Rounding::kDown) {
    return static_cast<int8_t>(-CodeOf(-value, scale, Rounding::kUp));
  }
  int code = -kMaxCode;
  while (code * scale < value) {
    ++code;
  }
  return static_cast<int8_t>(code);
}

}  // namespace

std::vector<double> ReadVector(const VectorBlock& block, const uint8_t* data, uint32_t idx) {
  const uint8_t* const vector = data + idx * VectorBytes(block);
  std::vector<double> elements(block.dim);
  uint16_t half;
  if (block.type == IndexType::kBf16) {
    for (uint32_t d = 0; d < block.dim; ++d) {
      std::memcpy(&half, vector + d * sizeof(half), sizeof(half));
      elements[d] = double{Bf16ToFloat(half)};
    }
    return elements;
  }
  std::memcpy(&half, data + ScalesOffset(block) + idx * sizeof(half), sizeof(half));
  for (uint32_t d = 0; d < block.dim; ++d) {
    elements[d] = static_cast<int8_t>(vector[d]) * double{Bf16ToFloat(half)};
  }
  return elements;
}

void WriteVector(const VectorOut& out,
                 std::span<const float> values,
                 std::span<const Rounding> roundings) {
  uint8_t* const vector = out.data + out.idx * VectorBytes(out.block);
  if (out.block.type == IndexType::kBf16) {
    for (uint32_t d = 0; d < out.block.dim; ++d) {
      const uint16_t half = Half(values[d], roundings[d]);
      std::memcpy(vector + d * sizeof(half), &half, sizeof(half));
    }
    return;
  }
  const uint16_t half = ScaleOf(values);
  const double scale = double{Bf16ToFloat(half)};
  std::memcpy(out.data + ScalesOffset(out.block) + out.idx * sizeof(half), &half, sizeof(half));
  for (uint32_t d = 0; d < out.block.dim; ++d) {
    vector[d] =
        static_cast<uint8_t>(scale > 0 ? CodeOf(double{values[d]}, scale, roundings[d]) : 0);
  }
}

}  // namespace spindle::kernels::reference
