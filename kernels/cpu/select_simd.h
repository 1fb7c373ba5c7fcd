// Vector pieces of selections: comparisons whose lanes become bits. Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

//   LanesAtLeast, LanesAbove  bit j: lane j of `value` is at least, or above, that of `bound`
//   AddWhereAtLeast           sum + weights[j] in lanes where `value` is at least `bound`
// NaN is neither.

#if defined(__AVX512BF16__)

SPINDLE_INLINE uint64_t LanesAtLeast(F32x16 value, F32x16 bound) {
  return _mm512_cmp_ps_mask(value, bound, _CMP_GE_OQ);
}

SPINDLE_INLINE I32x16 AddWhereAtLeast(I32x16 sum,
                                      F32x16 value,
                                      F32x16 bound,
                                      const uint16_t* weights) {
  const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
  const __mmask16 lanes = _mm512_cmp_ps_mask(value, bound, _CMP_GE_OQ);
  return _mm512_add_epi32(sum, _mm512_maskz_cvtepu16_epi32(lanes, packed));
}

#elif defined(__AVX2__)

SPINDLE_INLINE uint64_t LanesAtLeast(F32x16 value, F32x16 bound) {
  const auto of = [&](int i) __attribute__((always_inline)) {
    return static_cast<uint64_t>(
        _mm256_movemask_ps(_mm256_cmp_ps(value.half[i], bound.half[i], _CMP_GE_OQ)));
  };
  return of(0) | of(1) << 8U;
}

SPINDLE_INLINE I32x16 AddWhereAtLeast(I32x16 sum,
                                      F32x16 value,
                                      F32x16 bound,
                                      const uint16_t* weights) {
  for (int i = 0; i < 2; ++i) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights + 8 * i));
    const __m256i lanes =
        _mm256_castps_si256(_mm256_cmp_ps(value.half[i], bound.half[i], _CMP_GE_OQ));
    sum.half[i] =
        _mm256_add_epi32(sum.half[i], _mm256_and_si256(lanes, _mm256_cvtepu16_epi32(packed)));
  }
  return sum;
}

#else

SPINDLE_INLINE uint64_t LanesAtLeast(F32x16 value, F32x16 bound) {
  uint64_t lanes = 0;
  for (int i = 0; i < 4; ++i) {
    lanes |= static_cast<uint64_t>(_mm_movemask_ps(_mm_cmpge_ps(value.part[i], bound.part[i])))
             << (4 * i);
  }
  return lanes;
}

SPINDLE_INLINE I32x16 AddWhereAtLeast(I32x16 sum,
                                      F32x16 value,
                                      F32x16 bound,
                                      const uint16_t* weights) {
  for (int i = 0; i < 4; ++i) {
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(weights + 4 * i));
    const __m128i lanes = _mm_castps_si128(_mm_cmpge_ps(value.part[i], bound.part[i]));
    sum.part[i] = _mm_add_epi32(
        sum.part[i], _mm_and_si128(lanes, _mm_unpacklo_epi16(packed, _mm_setzero_si128())));
  }
  return sum;
}

#endif

SPINDLE_INLINE uint64_t LanesAbove(F32x16 value, F32x16 bound) {
  return LanesAtLeast(value, bound) & ~LanesAtLeast(bound, value);
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
