// Sixteen lanes with AVX-512; see simd.h. Thread-safety: pure functions, `static` for the reason in
// base/dtype.h.
#pragma once

#include <bit>
#include <cstdint>

#include <immintrin.h>

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

using F32x16 = __m512;
using I32x16 = __m512i;

SPINDLE_INLINE F32x16 Zero() {
  return _mm512_setzero_ps();
}

SPINDLE_INLINE F32x16 Splat(float value) {
  return _mm512_set1_ps(value);
}

SPINDLE_INLINE F32x16 Load(const float* from) {
  return _mm512_loadu_ps(from);
}

SPINDLE_INLINE void Store(float* to, F32x16 value) {
  _mm512_storeu_ps(to, value);
}

SPINDLE_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  return _mm512_add_ps(a, b);
}

SPINDLE_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  return _mm512_sub_ps(a, b);
}

SPINDLE_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  return _mm512_mul_ps(a, b);
}

SPINDLE_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  return _mm512_div_ps(a, b);
}

SPINDLE_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  return _mm512_max_ps(a, b);
}

SPINDLE_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  return _mm512_min_ps(a, b);
}

SPINDLE_INLINE F32x16 MulAdd(F32x16 a, F32x16 b, F32x16 c) {
  return _mm512_fmadd_ps(a, b, c);
}

SPINDLE_INLINE I32x16 SplatInt(int32_t value) {
  return _mm512_set1_epi32(value);
}

SPINDLE_INLINE I32x16 AddInt(I32x16 a, I32x16 b) {
  return _mm512_add_epi32(a, b);
}

// value · kInt8HighUnit.
SPINDLE_INLINE I32x16 TimesHighUnit(I32x16 value) {
  return _mm512_sub_epi32(_mm512_slli_epi32(value, 8), _mm512_slli_epi32(value, 1));
}

SPINDLE_INLINE F32x16 ToFloat(I32x16 value) {
  return _mm512_cvtepi32_ps(value);
}

SPINDLE_INLINE I32x16 ToNearestInt(F32x16 value) {
  return _mm512_cvtps_epi32(value);
}

SPINDLE_INLINE void StoreInt(int32_t* to, I32x16 value) {
  _mm512_storeu_si512(to, value);
}

SPINDLE_INLINE F32x16 ScaleByPowerOfTwo(F32x16 value, F32x16 shifted_exponent) {
  return _mm512_castsi512_ps(_mm512_add_epi32(
      _mm512_castps_si512(value), _mm512_slli_epi32(_mm512_castps_si512(shifted_exponent), 23)));
}

SPINDLE_INLINE F32x16 LoadHalf(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

SPINDLE_INLINE F32x16 LoadBf16(const uint8_t* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

SPINDLE_INLINE F32x16 LoadU8(const uint8_t* from) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

SPINDLE_INLINE F32x16 LoadS8(const uint8_t* from) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

SPINDLE_INLINE void StoreBf16(uint8_t* to, F32x16 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i result = _mm512_mask_mov_epi32(rounded, is_nan, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)));
}

SPINDLE_INLINE void StoreS8(uint8_t* to, I32x16 value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(value));
}

SPINDLE_INLINE int32_t SumInt(I32x16 value) {
  return _mm512_reduce_add_epi32(value);
}

SPINDLE_INLINE uint32_t MaxMagnitudeBits(F32x16 a, F32x16 b) {
  const __m512i mask = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i bits_a = _mm512_and_si512(_mm512_castps_si512(a), mask);
  const __m512i bits_b = _mm512_and_si512(_mm512_castps_si512(b), mask);
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(bits_a, bits_b)));
}

// Codes of four consecutive k of sixteen outputs: byte 4 · output + (k mod 4).
using CodeVec = __m512i;

SPINDLE_INLINE CodeVec LoadCodes(const uint8_t* from) {
  return _mm512_loadu_si512(from);
}

SPINDLE_INLINE CodeVec LowNibbles(CodeVec value) {
  return _mm512_and_si512(value, _mm512_set1_epi8(15));
}

SPINDLE_INLINE CodeVec HighNibbles(CodeVec value) {
  return _mm512_and_si512(_mm512_srli_epi16(value, 4), _mm512_set1_epi8(15));
}

// Up to this many rows the sums of products are split, since the next step of one sum waits for
// four cycles: fewer sums would leave the unit idle.
inline constexpr uint32_t kMaxSplitRows = 4;

// dots[i] += Σ codes · x_i over 4 · kGroups elements of each row; VNNI is exact for any unsigned
// codes. Rows take turns: one row's steps depend on each other, and the scheduler does not look far
// enough ahead to find the next row's.
template <int kMaxCode, int kGroups, int kRows>
SPINDLE_INLINE void BlockDots(const CodeVec* codes,
                              const uint8_t* x,
                              size_t stride_bytes,
                              I32x16* dots) {
  constexpr bool kTwoSums = static_cast<uint32_t>(kRows) <= kMaxSplitRows;
  I32x16 odd[kTwoSums ? static_cast<size_t>(kRows) : 1];
  if constexpr (kTwoSums) {
    SPINDLE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      odd[i] = _mm512_setzero_si512();
    }
  }
  SPINDLE_UNROLL
  for (int group = 0; group < kGroups; ++group) {
    SPINDLE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      I32x16& sum = kTwoSums && group % 2 != 0 ? odd[i] : dots[i];
      int32_t four;
      __builtin_memcpy(&four, x + stride_bytes * static_cast<size_t>(i) + 4 * group, sizeof(four));
      sum = _mm512_dpbusd_epi32(sum, codes[group], _mm512_set1_epi32(four));
    }
  }
  if constexpr (kTwoSums) {
    SPINDLE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      dots[i] = _mm512_add_epi32(dots[i], odd[i]);
    }
  }
}

// Whether BlockDots needs -zero · Σ x in its initial sums to give Σ (code - zero) · x.
template <int kMaxCode>
inline constexpr bool kUsesZeroCorrection = true;

// acc + low · x_low + high · x_high of bf16 pairs.
SPINDLE_INLINE F32x16 DotBf16Pair(F32x16 acc, const uint8_t* weights, const uint8_t* x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_dpbf16_ps(acc,
                          std::bit_cast<__m512bh>(_mm512_loadu_si512(weights)),
                          std::bit_cast<__m512bh>(_mm512_set1_epi32(pair)));
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
