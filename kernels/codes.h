// Decodes the quantised row formats of model files into codes, scales and minima, and converts
// small floats. An element is scale · (code - zero) + min, with one scale and min per group of
// GroupElements(type) elements; each product is exact in fp32, so an element is the correctly
// rounded value of its definition. Thread-safety: pure functions. They are `static` because per-ISA
// objects include this header (see base/dtype.h).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace spindle::kernels {

inline constexpr uint32_t kSuperBlock = 256;      // elements of a K-type block
inline constexpr uint32_t kActivationBlock = 32;  // elements that share an activation scale
// A block of activations below this is prepared as zeros, so that 127 / max stays finite.
inline constexpr float kMinBlockMagnitude = 0x1p-100F;

[[nodiscard]] static constexpr bool IsQuantised(DType type) {
  return type != DType::kF32 && type != DType::kF16 && type != DType::kBF16;
}

// Elements that share a scale.
[[nodiscard]] static constexpr uint32_t GroupElements(DType type) {
  return type == DType::kQ6_K ? 16 : 32;
}

// The code that stands for 0 in the symmetric types; 0 for the types with a minimum.
[[nodiscard]] static constexpr int32_t ZeroCode(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return 128;
    case DType::kQ4_0:
      return 8;
    case DType::kQ5_0:
      return 16;
    case DType::kQ6_K:
      return 32;
    default:
      return 0;
  }
}

[[nodiscard]] static constexpr bool HasMinimum(DType type) {
  return IsQuantised(type) && ZeroCode(type) == 0;
}

// k is a whole number of blocks, and of activation blocks for quantised types.
[[nodiscard]] static constexpr bool ValidRowLength(DType type, uint32_t k) {
  return k > 0 && k % Describe(type).block_elements == 0;
}

static inline uint16_t LoadU16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

static inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) {  // zero and subnormals: mantissa · 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t bits =
      exponent == 31 ? 0x7F800000U | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
  return std::bit_cast<float>(bits | sign);
}

static inline float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; NaN stays NaN (made quiet).
static inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

// 6-bit scale (`minimum` false) or minimum of sub-block `index` in the 12 packed bytes of Q4_K and
// Q5_K.
static inline uint8_t SubScale(const uint8_t* packed, uint32_t index, bool minimum) {
  const uint32_t at = minimum ? index + 4 : index;
  if (index < 4) {
    return packed[at] & 63U;
  }
  const uint32_t low = minimum ? packed[index + 4] >> 4 : packed[index + 4] & 15U;
  const uint32_t high = packed[minimum ? index : index - 4] >> 6;
  return static_cast<uint8_t>(low | (high << 4));
}

namespace codes_internal {

static inline void Nibbles(const uint8_t* from, uint8_t* codes, uint32_t half) {
  for (uint32_t i = 0; i < half; ++i) {
    codes[i] = from[i] & 15U;
    codes[i + half] = from[i] >> 4;
  }
}

static inline void Fives(const uint8_t* high, const uint8_t* from, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, high, sizeof(bits));
  Nibbles(from, codes, 16);
  for (uint32_t i = 0; i < 32; ++i) {
    codes[i] = static_cast<uint8_t>(codes[i] | (((bits >> i) & 1U) << 4));
  }
}

static inline void Q5K(const uint8_t* high, const uint8_t* from, uint8_t* codes) {
  for (uint32_t sub = 0; sub < 8; sub += 2) {
    Nibbles(from + 16 * sub, codes + 32 * sub, 32);
    for (uint32_t i = 0; i < 32; ++i) {
      uint8_t* low_code = codes + 32 * sub + i;
      low_code[0] = static_cast<uint8_t>(low_code[0] | (((high[i] >> sub) & 1U) << 4));
      low_code[32] = static_cast<uint8_t>(low_code[32] | (((high[i] >> (sub + 1)) & 1U) << 4));
    }
  }
}

static inline void Q6K(const uint8_t* from, uint8_t* codes) {
  for (uint32_t half = 0; half < 2; ++half) {
    const uint8_t* low = from + 64 * half;
    const uint8_t* high = from + 128 + 32 * half;
    uint8_t* out = codes + 128 * half;
    for (uint32_t i = 0; i < 32; ++i) {
      out[i] = static_cast<uint8_t>((low[i] & 15U) | ((high[i] & 3U) << 4));
      out[i + 32] = static_cast<uint8_t>((low[i + 32] & 15U) | (((high[i] >> 2) & 3U) << 4));
      out[i + 64] = static_cast<uint8_t>((low[i] >> 4) | (((high[i] >> 4) & 3U) << 4));
      out[i + 96] = static_cast<uint8_t>((low[i + 32] >> 4) | ((high[i] >> 6) << 4));
    }
  }
}

}  // namespace codes_internal

// Unsigned codes of one row.
//   codes  [k]
//   REQUIRES: IsQuantised(type), ValidRowLength(type, k)
static inline void DecodeCodes(DType type, const uint8_t* row, uint32_t k, uint8_t* codes) {
  const DTypeInfo info = Describe(type);
  for (uint32_t done = 0; done < k; done += info.block_elements, row += info.block_bytes) {
    uint8_t* out = codes + done;
    switch (type) {
      case DType::kQ8_0:
        for (uint32_t i = 0; i < 32; ++i) {
          out[i] = row[2 + i] ^ 0x80U;
        }
        break;
      case DType::kQ4_0:
        codes_internal::Nibbles(row + 2, out, 16);
        break;
      case DType::kQ4_1:
        codes_internal::Nibbles(row + 4, out, 16);
        break;
      case DType::kQ5_0:
        codes_internal::Fives(row + 2, row + 6, out);
        break;
      case DType::kQ5_1:
        codes_internal::Fives(row + 4, row + 8, out);
        break;
      case DType::kQ4_K:
        for (uint32_t pair = 0; pair < 4; ++pair) {
          codes_internal::Nibbles(row + 16 + 32 * pair, out + 64 * pair, 32);
        }
        break;
      case DType::kQ5_K:
        codes_internal::Q5K(row + 16, row + 48, out);
        break;
      default:
        codes_internal::Q6K(row, out);
        break;
    }
  }
}

// Scale and minimum of group `group` of a row.
static inline void DecodeScale(
    DType type, const uint8_t* row, uint32_t group, float* scale, float* minimum) {
  *minimum = 0.0F;
  switch (type) {
    case DType::kQ6_K: {
      const uint8_t* block = row + size_t{210} * (group / 16);
      *scale = HalfToFloat(LoadU16(block + 208)) *
               static_cast<float>(static_cast<int8_t>(block[192 + group % 16]));
      return;
    }
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const uint8_t* block = row + size_t{Describe(type).block_bytes} * (group / 8);
      *scale =
          HalfToFloat(LoadU16(block)) * static_cast<float>(SubScale(block + 4, group % 8, false));
      *minimum = -HalfToFloat(LoadU16(block + 2)) *
                 static_cast<float>(SubScale(block + 4, group % 8, true));
      return;
    }
    default: {
      const uint8_t* block = row + size_t{Describe(type).block_bytes} * group;
      *scale = HalfToFloat(LoadU16(block));
      if (HasMinimum(type)) {
        *minimum = HalfToFloat(LoadU16(block + 2));
      }
      return;
    }
  }
}

// Element `index` of a row of F32, F16 or BF16.
static inline float LoadFloat(DType type, const uint8_t* row, uint32_t index) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, row + size_t{4} * index, sizeof(value));
    return value;
  }
  const uint16_t bits = LoadU16(row + size_t{2} * index);
  return type == DType::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
}

// Elements [0, k) of a row as floats. REQUIRES: ValidRowLength(type, k)
static inline void DequantizeElements(DType type, const uint8_t* row, uint32_t k, float* out) {
  if (!IsQuantised(type)) {
    for (uint32_t i = 0; i < k; ++i) {
      out[i] = LoadFloat(type, row, i);
    }
    return;
  }
  const DTypeInfo info = Describe(type);
  const uint32_t group_elements = GroupElements(type);
  const int32_t zero = ZeroCode(type);
  uint8_t codes[kSuperBlock];
  for (uint32_t begin = 0; begin < k; begin += info.block_elements, row += info.block_bytes) {
    DecodeCodes(type, row, info.block_elements, codes);
    for (uint32_t group = 0; group < info.block_elements / group_elements; ++group) {
      float scale;
      float minimum;
      DecodeScale(type, row, group, &scale, &minimum);
      for (uint32_t i = group * group_elements; i < (group + 1) * group_elements; ++i) {
        out[begin + i] = scale * static_cast<float>(codes[i] - zero) + minimum;
      }
    }
  }
}

}  // namespace spindle::kernels
