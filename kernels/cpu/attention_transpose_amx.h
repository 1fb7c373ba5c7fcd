// V of one tile, transposed in registers for the tile product Oᵀ += Vᵀ · Pᵀ.
// Thread-safety: pure function over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_tile.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// Rows of the next tile asked for meanwhile: three quarters of the 128.
inline constexpr uint32_t kPrefetchInTranspose = 64;

// Vᵀ as [d][64 lanes] bf16, from rows that need not be contiguous.
SPINDLE_INLINE void TransposeValues(const uint8_t* const* rows,
                                    uint32_t d,
                                    uint16_t* out,
                                    RowPrefetcher* prefetcher) {
  const uint32_t prefetch_rows = (kPrefetchInTranspose + d / 4 - 1) / (d / 4);
  for (uint32_t half = 0; half < kTileTokens; half += 32) {
    for (uint32_t first = 0; first < d; first += 8) {
      prefetcher->Advance(prefetch_rows);
      __m512i z[8];
#pragma GCC unroll 8
      for (uint32_t r = 0; r < 8; ++r) {
        const auto load = [&](uint32_t row) __attribute__((always_inline)) {
          return _mm_loadu_si128(
              reinterpret_cast<const __m128i*>(rows[half + row] + 2 * size_t{first}));
        };
        z[r] = _mm512_castsi128_si512(load(r));
        z[r] = _mm512_inserti32x4(z[r], load(r + 8), 1);
        z[r] = _mm512_inserti32x4(z[r], load(r + 16), 2);
        z[r] = _mm512_inserti32x4(z[r], load(r + 24), 3);
      }
      __m512i pairs[8];  // of rows (2i, 2i + 1): columns 0 … 3, then 4 … 7
      __m512i quads[8];
#pragma GCC unroll 4
      for (uint32_t i = 0; i < 4; ++i) {
        pairs[2 * i] = _mm512_unpacklo_epi16(z[2 * i], z[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi16(z[2 * i], z[2 * i + 1]);
      }
#pragma GCC unroll 4
      for (uint32_t i = 0; i < 4; ++i) {  // i & 1: columns, i >> 1: rows 0 … 3 or 4 … 7
        const __m512i a = pairs[(i >> 1) * 4 + (i & 1)];
        const __m512i b = pairs[(i >> 1) * 4 + 2 + (i & 1)];
        quads[2 * i] = _mm512_unpacklo_epi32(a, b);
        quads[2 * i + 1] = _mm512_unpackhi_epi32(a, b);
      }
      uint16_t* const to = out + size_t{first} * kTileTokens + half;
#pragma GCC unroll 4
      for (uint32_t i = 0; i < 4; ++i) {
        _mm512_storeu_si512(to + (2 * i) * kTileTokens,
                            _mm512_unpacklo_epi64(quads[i], quads[4 + i]));
        _mm512_storeu_si512(to + (2 * i + 1) * kTileTokens,
                            _mm512_unpackhi_epi64(quads[i], quads[4 + i]));
      }
    }
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
