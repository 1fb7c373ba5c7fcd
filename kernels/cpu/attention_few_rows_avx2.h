// Products of attention for few rows over bf16 K and V where they lie, as floats; see
// attention_few_rows.h. Thread-safety: pure functions over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_tile.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// Lanes of half a vector.
inline constexpr uint32_t kHalfLanes = kLanes / 2;

// 8 rows of 8 words each, transposed: words[i] holds word i of every row.
SPINDLE_INLINE void TransposeWords(const uint8_t* const* rows, size_t byte, __m256i* words) {
  __m256 r[kHalfLanes];
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kHalfLanes; ++i) {
    r[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(rows[i] + byte));
  }
  __m256 pairs[kHalfLanes];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kHalfLanes; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  __m256 quads[kHalfLanes];
#pragma GCC unroll 2
  for (uint32_t i = 0; i < kHalfLanes; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) {
    words[i] = _mm256_castps_si256(_mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20));
    words[i + 4] = _mm256_castps_si256(_mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31));
  }
}

// scores[kRows][64] of queries[kRows][d] and 64 K rows, for `lanes`; the others are zero or what a
// row of zeros gives.
template <size_t kRows>
SPINDLE_INLINE void ScoreRows(const uint8_t* const* keys,
                              uint64_t lanes,
                              uint32_t d,
                              const uint32_t* queries,
                              float* scores,
                              RowPrefetcher* prefetcher) {
  const auto* const q = reinterpret_cast<const float*>(queries);
  const uint32_t chunks = d / kLanes;
  const uint32_t prefetch_rows = (kHalfLanes + chunks - 1) / chunks;
  for (uint32_t group = 0; group < kTileTokens; group += kHalfLanes) {
    const bool is_live = ((lanes >> group) & 0xFFU) != 0;
    __m256 sums[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      sums[r] = _mm256_setzero_ps();
    }
    for (uint32_t element = 0; element < d && is_live; element += kLanes) {
      prefetcher->Advance(prefetch_rows);
      __m256i words[kHalfLanes];
      TransposeWords(keys + group, 2 * size_t{element}, words);
#pragma GCC unroll 8
      for (uint32_t j = 0; j < kHalfLanes; ++j) {
        const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(words[j], 16));
        const __m256 odd = _mm256_castsi256_ps(
            _mm256_and_si256(words[j], _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000U))));
#pragma GCC unroll 8
        for (size_t r = 0; r < kRows; ++r) {
          const float* const at = q + r * d + element + size_t{2} * j;
          sums[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(at), even, sums[r]);
          sums[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(at + 1), odd, sums[r]);
        }
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      _mm256_storeu_ps(scores + r * kTileTokens + group, sums[r]);
    }
  }
}

// acc[kRows][d] columns [column, column + 8 · kHalves) += probabilities[kRows][64] · V.
template <size_t kRows, size_t kHalves>
SPINDLE_INLINE void AccumulateColumns(const uint8_t* const* values,
                                      uint64_t lanes,
                                      uint32_t d,
                                      uint32_t column,
                                      const float* probabilities,
                                      float* acc,
                                      RowPrefetcher* prefetcher) {
  __m256 sums[kRows][kHalves];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kHalves; ++v) {
      sums[r][v] = _mm256_loadu_ps(acc + r * d + column + v * kHalfLanes);
    }
  }
  for (uint64_t left = lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctzll(left));
    prefetcher->Advance(1);
    const uint8_t* const row = values[lane] + 2 * size_t{column};
    __m256 p[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      p[r] = _mm256_broadcast_ss(probabilities + r * kTileTokens + lane);
    }
#pragma GCC unroll 4
    for (size_t v = 0; v < kHalves; ++v) {
      const __m128i halves =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * kHalfLanes * v));
      const __m256 operand =
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        sums[r][v] = _mm256_fmadd_ps(p[r], operand, sums[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kHalves; ++v) {
      _mm256_storeu_ps(acc + r * d + column + v * kHalfLanes, sums[r][v]);
    }
  }
}

// acc[kRows][d] += probabilities[kRows][64] · V of 64 rows.
template <size_t kRows>
SPINDLE_INLINE void AccumulateRows(const uint8_t* const* values,
                                   uint64_t lanes,
                                   uint32_t d,
                                   const uint32_t* probabilities,
                                   float* acc,
                                   RowPrefetcher* prefetcher) {
  const auto* const p = reinterpret_cast<const float*>(probabilities);
  uint32_t column = 0;
  // Sums, probabilities and an operand in 16 registers.
  if constexpr (kRows * 4 + kRows + 1 <= 16) {
    for (; column + 4 * kHalfLanes <= d; column += 4 * kHalfLanes) {
      AccumulateColumns<kRows, 4>(values, lanes, d, column, p, acc, prefetcher);
    }
  }
  constexpr size_t kHalves = kRows * 2 + kRows + 1 <= 16 ? 2 : 1;
  for (; column < d; column += kHalves * kHalfLanes) {
    AccumulateColumns<kRows, kHalves>(values, lanes, d, column, p, acc, prefetcher);
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
