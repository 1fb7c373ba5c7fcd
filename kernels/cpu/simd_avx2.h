// Sixteen lanes as two AVX2 halves; see simd.h. Thread-safety: pure functions, `static` as
// base/dtype.h says.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

struct F32x16 {
  __m256 half[2];
};

struct I32x16 {
  __m256i half[2];
};

SPINDLE_INLINE F32x16 Zero() {
  return {{_mm256_setzero_ps(), _mm256_setzero_ps()}};
}

SPINDLE_INLINE F32x16 Splat(float value) {
  return {{_mm256_set1_ps(value), _mm256_set1_ps(value)}};
}

SPINDLE_INLINE F32x16 Load(const float* from) {
  return {{_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}};
}

SPINDLE_INLINE void Store(float* to, F32x16 value) {
  _mm256_storeu_ps(to, value.half[0]);
  _mm256_storeu_ps(to + 8, value.half[1]);
}

SPINDLE_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  return {{_mm256_add_ps(a.half[0], b.half[0]), _mm256_add_ps(a.half[1], b.half[1])}};
}

SPINDLE_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  return {{_mm256_sub_ps(a.half[0], b.half[0]), _mm256_sub_ps(a.half[1], b.half[1])}};
}

SPINDLE_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  return {{_mm256_mul_ps(a.half[0], b.half[0]), _mm256_mul_ps(a.half[1], b.half[1])}};
}

SPINDLE_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  return {{_mm256_div_ps(a.half[0], b.half[0]), _mm256_div_ps(a.half[1], b.half[1])}};
}

SPINDLE_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  return {{_mm256_max_ps(a.half[0], b.half[0]), _mm256_max_ps(a.half[1], b.half[1])}};
}

SPINDLE_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  return {{_mm256_min_ps(a.half[0], b.half[0]), _mm256_min_ps(a.half[1], b.half[1])}};
}

SPINDLE_INLINE F32x16 MulAdd(F32x16 a, F32x16 b, F32x16 c) {
  return {{_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]),
           _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])}};
}

SPINDLE_INLINE I32x16 SplatInt(int32_t value) {
  return {{_mm256_set1_epi32(value), _mm256_set1_epi32(value)}};
}

SPINDLE_INLINE I32x16 AddInt(I32x16 a, I32x16 b) {
  return {{_mm256_add_epi32(a.half[0], b.half[0]), _mm256_add_epi32(a.half[1], b.half[1])}};
}

// value · kInt8HighUnit.
SPINDLE_INLINE I32x16 TimesHighUnit(I32x16 value) {
  const auto times = [](__m256i half) {
    return _mm256_sub_epi32(_mm256_slli_epi32(half, 8), _mm256_slli_epi32(half, 1));
  };
  return {{times(value.half[0]), times(value.half[1])}};
}

SPINDLE_INLINE F32x16 ToFloat(I32x16 value) {
  return {{_mm256_cvtepi32_ps(value.half[0]), _mm256_cvtepi32_ps(value.half[1])}};
}

SPINDLE_INLINE I32x16 ToNearestInt(F32x16 value) {
  return {{_mm256_cvtps_epi32(value.half[0]), _mm256_cvtps_epi32(value.half[1])}};
}

SPINDLE_INLINE void StoreInt(int32_t* to, I32x16 value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value.half[0]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), value.half[1]);
}

SPINDLE_INLINE F32x16 ScaleByPowerOfTwo(F32x16 value, F32x16 shifted_exponent) {
  F32x16 result;
  for (int i = 0; i < 2; ++i) {
    result.half[i] = _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(value.half[i]),
                         _mm256_slli_epi32(_mm256_castps_si256(shifted_exponent.half[i]), 23)));
  }
  return result;
}

SPINDLE_INLINE F32x16 LoadHalf(const uint8_t* from) {
  return {{_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
           _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16)))}};
}

SPINDLE_INLINE F32x16 LoadBf16(const uint8_t* from) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(low), 16)),
           _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16))}};
}

SPINDLE_INLINE F32x16 LoadU8(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
           _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))}};
}

SPINDLE_INLINE F32x16 LoadS8(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))}};
}

SPINDLE_INLINE void StoreBf16(uint8_t* to, F32x16 value) {
  __m256i high[2];
  for (int i = 0; i < 2; ++i) {
    const __m256i bits = _mm256_castps_si256(value.half[i]);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan =
        _mm256_castps_si256(_mm256_cmp_ps(value.half[i], value.half[i], _CMP_UNORD_Q));
    high[i] = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  }
  const __m256i packed = _mm256_packus_epi32(high[0], high[1]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0b11011000));
}

SPINDLE_INLINE void StoreS8(uint8_t* to, I32x16 value) {
  const __m256i words =
      _mm256_permute4x64_epi64(_mm256_packs_epi32(value.half[0], value.half[1]), 0b11011000);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

SPINDLE_INLINE int32_t SumInt(I32x16 value) {
  const __m256i eight = _mm256_add_epi32(value.half[0], value.half[1]);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b10110001));
  return _mm_cvtsi128_si32(four);
}

SPINDLE_INLINE uint32_t MaxMagnitudeBits(F32x16 a, F32x16 b) {
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i eight = _mm256_and_si256(_mm256_castps_si256(a.half[0]), mask);
  eight = _mm256_max_epi32(eight, _mm256_and_si256(_mm256_castps_si256(a.half[1]), mask));
  eight = _mm256_max_epi32(eight, _mm256_and_si256(_mm256_castps_si256(b.half[0]), mask));
  eight = _mm256_max_epi32(eight, _mm256_and_si256(_mm256_castps_si256(b.half[1]), mask));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0b10110001));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}

// Codes of four consecutive k of sixteen outputs: byte 4 · output + (k mod 4).
struct CodeVec {
  __m256i half[2];
};

SPINDLE_INLINE CodeVec LoadCodes(const uint8_t* from) {
  return {{_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
           _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32))}};
}

SPINDLE_INLINE CodeVec LowNibbles(CodeVec value) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {{_mm256_and_si256(value.half[0], mask), _mm256_and_si256(value.half[1], mask)}};
}

SPINDLE_INLINE CodeVec HighNibbles(CodeVec value) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {{_mm256_and_si256(_mm256_srli_epi16(value.half[0], 4), mask),
           _mm256_and_si256(_mm256_srli_epi16(value.half[1], 4), mask)}};
}

// Signed codes for BlockDots of the full byte range; unsigned ones would saturate (255 · 127 · 2 >
// 32767).
template <int kMaxCode>
inline constexpr bool kUsesZeroCorrection = kMaxCode < 128;

// Products of a pair are exact in int16: 4-bit codes may be added up 8 times (30480), 5-bit ones 4
// times (31496), 6-bit ones twice (32004), and |code| ≤ 128 once (32512).
template <int kMaxCode>
inline constexpr int kGroupsPerWord = kMaxCode < 16 ? 8
                                                    : (kMaxCode < 32 ? 4 : (kMaxCode < 64 ? 2 : 1));

SPINDLE_INLINE __m256i PairProducts(__m256i codes, __m256i x, bool full_range) {
  if (!full_range) {
    return _mm256_maddubs_epi16(codes, x);
  }
  const __m256i signed_codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
  return _mm256_maddubs_epi16(_mm256_abs_epi8(signed_codes), _mm256_sign_epi8(x, signed_codes));
}

// zero_correction + Σ code · x over 4 · kGroups elements, where the full byte range stands for code
// - 128.
template <int kMaxCode, int kGroups>
SPINDLE_INLINE I32x16 BlockDot(const CodeVec* codes, const uint8_t* x, I32x16 sum) {
  constexpr int kRun = kGroupsPerWord<kMaxCode> < kGroups ? kGroupsPerWord<kMaxCode> : kGroups;
  const __m256i ones = _mm256_set1_epi16(1);
  SPINDLE_UNROLL
  for (int first = 0; first < kGroups; first += kRun) {
    __m256i words[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    SPINDLE_UNROLL
    for (int group = first; group < first + kRun; ++group) {
      int32_t bytes;
      __builtin_memcpy(&bytes, x + 4 * group, sizeof(bytes));
      const __m256i four = _mm256_set1_epi32(bytes);
      for (int i = 0; i < 2; ++i) {
        words[i] =
            _mm256_add_epi16(words[i], PairProducts(codes[group].half[i], four, kMaxCode >= 128));
      }
    }
    for (int i = 0; i < 2; ++i) {
      sum.half[i] = _mm256_add_epi32(sum.half[i], _mm256_madd_epi16(words[i], ones));
    }
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
  SPINDLE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    dots[i] =
        BlockDot<kMaxCode, kGroups>(codes, x + stride_bytes * static_cast<size_t>(i), dots[i]);
  }
}

// acc + low · x_low, then + high · x_high, of bf16 pairs.
SPINDLE_INLINE F32x16 DotBf16Pair(F32x16 acc, const uint8_t* weights, const uint8_t* x) {
  uint32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  const __m256 x_low = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(pair << 16)));
  const __m256 x_high =
      _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(pair & 0xFFFF0000U)));
  const __m256i high_mask = _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000U));
  for (int i = 0; i < 2; ++i) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 32 * i));
    acc.half[i] =
        _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)), x_low, acc.half[i]);
    acc.half[i] = _mm256_fmadd_ps(
        _mm256_castsi256_ps(_mm256_and_si256(both, high_mask)), x_high, acc.half[i]);
  }
  return acc;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
