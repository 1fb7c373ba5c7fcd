// Sixteen lanes as four SSE2 quarters; see simd.h. Thread-safety: pure functions, `static` as
// base/dtype.h says.
#pragma once

#include <cstdint>

#include <emmintrin.h>

#include "kernels/codes.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

struct F32x16 {
  __m128 part[4];
};

struct I32x16 {
  __m128i part[4];
};

// Lane-wise operations spelt once: the result of `expression` for each quarter i.
#define SPINDLE_QUARTERS(Type, expression) \
  Type result;                             \
  for (int i = 0; i < 4; ++i) {            \
    result.part[i] = (expression);         \
  }                                        \
  return result

SPINDLE_INLINE F32x16 Zero() {
  SPINDLE_QUARTERS(F32x16, _mm_setzero_ps());
}

SPINDLE_INLINE F32x16 Splat(float value) {
  SPINDLE_QUARTERS(F32x16, _mm_set1_ps(value));
}

SPINDLE_INLINE F32x16 Load(const float* from) {
  SPINDLE_QUARTERS(F32x16, _mm_loadu_ps(from + 4 * i));
}

SPINDLE_INLINE void Store(float* to, F32x16 value) {
  for (int i = 0; i < 4; ++i) {
    _mm_storeu_ps(to + 4 * i, value.part[i]);
  }
}

SPINDLE_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  SPINDLE_QUARTERS(F32x16, _mm_add_ps(a.part[i], b.part[i]));
}

SPINDLE_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  SPINDLE_QUARTERS(F32x16, _mm_sub_ps(a.part[i], b.part[i]));
}

SPINDLE_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  SPINDLE_QUARTERS(F32x16, _mm_mul_ps(a.part[i], b.part[i]));
}

SPINDLE_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  SPINDLE_QUARTERS(F32x16, _mm_div_ps(a.part[i], b.part[i]));
}

SPINDLE_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  SPINDLE_QUARTERS(F32x16, _mm_max_ps(a.part[i], b.part[i]));
}

SPINDLE_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  SPINDLE_QUARTERS(F32x16, _mm_min_ps(a.part[i], b.part[i]));
}

// SSE2 has no fused form: rounded twice, everywhere alike.
SPINDLE_INLINE F32x16 MulAdd(F32x16 a, F32x16 b, F32x16 c) {
  SPINDLE_QUARTERS(F32x16, _mm_add_ps(_mm_mul_ps(a.part[i], b.part[i]), c.part[i]));
}

SPINDLE_INLINE I32x16 SplatInt(int32_t value) {
  SPINDLE_QUARTERS(I32x16, _mm_set1_epi32(value));
}

SPINDLE_INLINE I32x16 AddInt(I32x16 a, I32x16 b) {
  SPINDLE_QUARTERS(I32x16, _mm_add_epi32(a.part[i], b.part[i]));
}

// value · kInt8HighUnit.
SPINDLE_INLINE I32x16 TimesHighUnit(I32x16 value) {
  SPINDLE_QUARTERS(
      I32x16, _mm_sub_epi32(_mm_slli_epi32(value.part[i], 8), _mm_slli_epi32(value.part[i], 1)));
}

SPINDLE_INLINE F32x16 ToFloat(I32x16 value) {
  SPINDLE_QUARTERS(F32x16, _mm_cvtepi32_ps(value.part[i]));
}

SPINDLE_INLINE I32x16 ToNearestInt(F32x16 value) {
  SPINDLE_QUARTERS(I32x16, _mm_cvtps_epi32(value.part[i]));
}

SPINDLE_INLINE void StoreInt(int32_t* to, I32x16 value) {
  for (int i = 0; i < 4; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 4 * i), value.part[i]);
  }
}

SPINDLE_INLINE F32x16 ScaleByPowerOfTwo(F32x16 value, F32x16 shifted_exponent) {
  SPINDLE_QUARTERS(F32x16,
                   _mm_castsi128_ps(_mm_add_epi32(
                       _mm_castps_si128(value.part[i]),
                       _mm_slli_epi32(_mm_castps_si128(shifted_exponent.part[i]), 23))));
}

SPINDLE_INLINE F32x16 LoadHalf(const uint8_t* from) {
  float values[16];
  for (int i = 0; i < 16; ++i) {
    values[i] = HalfToFloat(LoadU16(from + 2 * i));
  }
  return Load(values);
}

SPINDLE_INLINE F32x16 LoadBf16(const uint8_t* from) {
  const __m128i zero = _mm_setzero_si128();
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16));
  return {{_mm_castsi128_ps(_mm_unpacklo_epi16(zero, low)),
           _mm_castsi128_ps(_mm_unpackhi_epi16(zero, low)),
           _mm_castsi128_ps(_mm_unpacklo_epi16(zero, high)),
           _mm_castsi128_ps(_mm_unpackhi_epi16(zero, high))}};
}

SPINDLE_INLINE F32x16 LoadU8(const uint8_t* from) {
  float values[16];
  for (int i = 0; i < 16; ++i) {
    values[i] = static_cast<float>(from[i]);
  }
  return Load(values);
}

SPINDLE_INLINE F32x16 LoadS8(const uint8_t* from) {
  float values[16];
  for (int i = 0; i < 16; ++i) {
    values[i] = static_cast<float>(static_cast<int8_t>(from[i]));
  }
  return Load(values);
}

SPINDLE_INLINE void StoreBf16(uint8_t* to, F32x16 value) {
  float values[16];
  Store(values, value);
  for (int i = 0; i < 16; ++i) {
    const uint16_t bits = FloatToBf16(values[i]);
    __builtin_memcpy(to + 2 * i, &bits, sizeof(bits));
  }
}

SPINDLE_INLINE void StoreS8(uint8_t* to, I32x16 value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi16(_mm_packs_epi32(value.part[0], value.part[1]),
                                   _mm_packs_epi32(value.part[2], value.part[3])));
}

SPINDLE_INLINE int32_t SumInt(I32x16 value) {
  __m128i four = _mm_add_epi32(_mm_add_epi32(value.part[0], value.part[1]),
                               _mm_add_epi32(value.part[2], value.part[3]));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b10110001));
  return _mm_cvtsi128_si32(four);
}

SPINDLE_INLINE __m128i MaxInt(__m128i a, __m128i b) {
  const __m128i greater = _mm_cmpgt_epi32(a, b);
  return _mm_or_si128(_mm_and_si128(greater, a), _mm_andnot_si128(greater, b));
}

SPINDLE_INLINE uint32_t MaxMagnitudeBits(F32x16 a, F32x16 b) {
  const __m128i mask = _mm_set1_epi32(0x7FFFFFFF);
  __m128i four = _mm_setzero_si128();
  for (int i = 0; i < 4; ++i) {
    four = MaxInt(four, _mm_and_si128(_mm_castps_si128(a.part[i]), mask));
    four = MaxInt(four, _mm_and_si128(_mm_castps_si128(b.part[i]), mask));
  }
  four = MaxInt(four, _mm_shuffle_epi32(four, 0b01001110));
  four = MaxInt(four, _mm_shuffle_epi32(four, 0b10110001));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}

// Codes of four consecutive k of sixteen outputs: byte 4 · output + (k mod 4).
struct CodeVec {
  __m128i part[4];
};

SPINDLE_INLINE CodeVec LoadCodes(const uint8_t* from) {
  SPINDLE_QUARTERS(CodeVec, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i)));
}

SPINDLE_INLINE CodeVec LowNibbles(CodeVec value) {
  SPINDLE_QUARTERS(CodeVec, _mm_and_si128(value.part[i], _mm_set1_epi8(15)));
}

SPINDLE_INLINE CodeVec HighNibbles(CodeVec value) {
  SPINDLE_QUARTERS(CodeVec, _mm_and_si128(_mm_srli_epi16(value.part[i], 4), _mm_set1_epi8(15)));
}

#undef SPINDLE_QUARTERS

template <int kMaxCode>
inline constexpr bool kUsesZeroCorrection = true;

// sum + Σ code · x over 4 · kGroups elements, in int16 products added in pairs.
template <int kMaxCode, int kGroups>
SPINDLE_INLINE I32x16 BlockDot(const CodeVec* codes, const uint8_t* x, I32x16 sum) {
  const __m128i zero = _mm_setzero_si128();
  for (int part = 0; part < 4; ++part) {
    // Lanes of `low`: output 0 in two halves, output 1 in two halves; `high`: outputs 2 and 3.
    __m128i low = zero;
    __m128i high = zero;
    for (int group = 0; group < kGroups; ++group) {
      int32_t bytes;
      __builtin_memcpy(&bytes, x + 4 * group, sizeof(bytes));
      const __m128i four = _mm_cvtsi32_si128(bytes);
      const __m128i words = _mm_srai_epi16(_mm_unpacklo_epi8(four, four), 8);
      const __m128i twice = _mm_unpacklo_epi64(words, words);
      const __m128i value = codes[group].part[part];
      low = _mm_add_epi32(low, _mm_madd_epi16(_mm_unpacklo_epi8(value, zero), twice));
      high = _mm_add_epi32(high, _mm_madd_epi16(_mm_unpackhi_epi8(value, zero), twice));
    }
    const __m128 even = _mm_shuffle_ps(_mm_castsi128_ps(low), _mm_castsi128_ps(high), 0b10001000);
    const __m128 odd = _mm_shuffle_ps(_mm_castsi128_ps(low), _mm_castsi128_ps(high), 0b11011101);
    sum.part[part] =
        _mm_add_epi32(sum.part[part], _mm_add_epi32(_mm_castps_si128(even), _mm_castps_si128(odd)));
  }
  return sum;
}

// See simd_avx512.h; here BlockDots has short chains and few registers.
inline constexpr uint32_t kMaxSplitRows = 0;

// dots[i] += Σ codes · x_i over 4 · kGroups elements of each row.
template <int kMaxCode, int kGroups, int kRows>
SPINDLE_INLINE void BlockDots(const CodeVec* codes,
                              const uint8_t* x,
                              size_t stride_bytes,
                              I32x16* dots) {
  for (int i = 0; i < kRows; ++i) {
    dots[i] =
        BlockDot<kMaxCode, kGroups>(codes, x + stride_bytes * static_cast<size_t>(i), dots[i]);
  }
}

// acc + low · x_low, then + high · x_high, of bf16 pairs.
SPINDLE_INLINE F32x16 DotBf16Pair(F32x16 acc, const uint8_t* weights, const uint8_t* x) {
  const F32x16 x_low = Splat(Bf16ToFloat(LoadU16(x)));
  const F32x16 x_high = Splat(Bf16ToFloat(LoadU16(x + 2)));
  const __m128i high_mask = _mm_set1_epi32(static_cast<int32_t>(0xFFFF0000U));
  F32x16 low;
  F32x16 high;
  for (int i = 0; i < 4; ++i) {
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights + 16 * i));
    low.part[i] = _mm_castsi128_ps(_mm_slli_epi32(both, 16));
    high.part[i] = _mm_castsi128_ps(_mm_and_si128(both, high_mask));
  }
  return MulAdd(high, x_high, MulAdd(low, x_low, acc));
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
