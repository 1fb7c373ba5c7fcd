// Transposition of 4-byte elements in registers. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "kernels/cpu/simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// 16 rows of 4-byte elements, columns [4 · chunk, 4 · chunk + 4) of each, to 4 vectors of 16 rows.
SPINDLE_INLINE void TransposeChunk(const uint8_t* const* rows, size_t chunk, __m512i* columns) {
  __m512i z[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const auto load = [&](int row) __attribute__((always_inline)) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + 16 * chunk));
    };
    z[r] = _mm512_castsi128_si512(load(r));
    z[r] = _mm512_inserti32x4(z[r], load(r + 4), 1);
    z[r] = _mm512_inserti32x4(z[r], load(r + 8), 2);
    z[r] = _mm512_inserti32x4(z[r], load(r + 12), 3);
  }
  const __m512i low01 = _mm512_unpacklo_epi32(z[0], z[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(z[2], z[3]);
  const __m512i high01 = _mm512_unpackhi_epi32(z[0], z[1]);
  const __m512i high23 = _mm512_unpackhi_epi32(z[2], z[3]);
  columns[0] = _mm512_unpacklo_epi64(low01, low23);
  columns[1] = _mm512_unpackhi_epi64(low01, low23);
  columns[2] = _mm512_unpacklo_epi64(high01, high23);
  columns[3] = _mm512_unpackhi_epi64(high01, high23);
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
