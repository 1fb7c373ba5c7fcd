// Products of attention for few rows over bf16 K and V where they lie, as pairs; see
// attention_few_rows.h. Thread-safety: pure functions over the caller's memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/transpose_avx512.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// scores[kRows][64] of bf16 queries[kRows][d / 2 pairs] and 64 K rows, for `lanes`; the others are
// zero or what a row of zeros gives.
template <size_t kRows>
SPINDLE_INLINE void ScoreRows(const uint8_t* const* keys,
                              uint64_t lanes,
                              uint32_t d,
                              const uint32_t* queries,
                              float* scores,
                              RowPrefetcher* prefetcher) {
  const uint32_t pairs = d / 2;
  const uint32_t prefetch_rows = (kTileTokens / 4 + pairs / 4 - 1) / (pairs / 4);
  for (uint32_t group = 0; group < kTileTokens; group += kLanes) {
    F32x16 sums[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      sums[r] = Zero();
    }
    for (uint32_t chunk = 0; chunk < pairs / 4 && AnyOfSixteen(lanes, group); ++chunk) {
      prefetcher->Advance(prefetch_rows);
      __m512i columns[4];
      TransposeChunk(keys + group, chunk, columns);
#pragma GCC unroll 4
      for (uint32_t j = 0; j < 4; ++j) {
        const __m512bh operand = std::bit_cast<__m512bh>(columns[j]);
#pragma GCC unroll 8
        for (size_t r = 0; r < kRows; ++r) {
          sums[r] = PairOp::Step(
              sums[r], PairOp::SplatOperand(queries + r * pairs + 4 * chunk + j), operand);
        }
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      Store(scores + r * kTileTokens + group, sums[r]);
    }
  }
}

// Pairs (even[i], odd[i]) of 32 bf16 each, i ascending, as two operands.
SPINDLE_INLINE void InterleaveRows(const uint8_t* even, const uint8_t* odd, __m512bh* operands) {
  alignas(64) static constexpr uint16_t kOrder[2][32] = {
      {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
      {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
  const __m512i a = _mm512_loadu_si512(even);
  const __m512i b = _mm512_loadu_si512(odd);
#pragma GCC unroll 2
  for (size_t half = 0; half < 2; ++half) {
    operands[half] =
        std::bit_cast<__m512bh>(_mm512_permutex2var_epi16(a, _mm512_load_si512(kOrder[half]), b));
  }
}

// The same of 16 bf16 each.
SPINDLE_INLINE __m512bh InterleaveHalfRows(const uint8_t* even, const uint8_t* odd) {
  const auto load = [](const uint8_t* from) __attribute__((always_inline)) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  };
  return std::bit_cast<__m512bh>(_mm512_or_si512(load(even), _mm512_slli_epi32(load(odd), 16)));
}

// acc[kRows][d] columns [column, column + 16 · kVectors) += probabilities[kRows][32 pairs] · V.
template <size_t kRows, size_t kVectors>
SPINDLE_INLINE void AccumulateColumns(const uint8_t* const* values,
                                      uint64_t lanes,
                                      uint32_t d,
                                      uint32_t column,
                                      const uint32_t* probabilities,
                                      float* acc,
                                      RowPrefetcher* prefetcher) {
  constexpr uint32_t kPairs = kTileTokens / 2;
  F32x16 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = Load(acc + r * d + column + v * kLanes);
    }
  }
  constexpr uint64_t kEvenLanes = 0x5555555555555555U;
  for (uint64_t left = (lanes | lanes >> 1U) & kEvenLanes; left != 0; left &= left - 1) {
    const auto pair = static_cast<uint32_t>(__builtin_ctzll(left)) / 2;
    prefetcher->Advance(2);
    const uint8_t* const even = values[2 * pair] + 2 * size_t{column};
    const uint8_t* const odd = values[2 * pair + 1] + 2 * size_t{column};
    __m512bh operands[kVectors];
    if constexpr (kVectors == 1) {
      operands[0] = InterleaveHalfRows(even, odd);
    } else {
#pragma GCC unroll 2
      for (size_t v = 0; v < kVectors; v += 2) {
        InterleaveRows(even + v * 32, odd + v * 32, operands + v);
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const __m512bh p = PairOp::SplatOperand(probabilities + r * kPairs + pair);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = PairOp::Step(sums[r][v], p, operands[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      Store(acc + r * d + column + v * kLanes, sums[r][v]);
    }
  }
}

// acc[kRows][d] += probabilities[kRows][32 pairs] · V of 64 rows.
template <size_t kRows>
SPINDLE_INLINE void AccumulateRows(const uint8_t* const* values,
                                   uint64_t lanes,
                                   uint32_t d,
                                   const uint32_t* probabilities,
                                   float* acc,
                                   RowPrefetcher* prefetcher) {
  uint32_t column = 0;
  if constexpr (kRows * 4 + 5 <= 32) {  // sums, operands and a broadcast in registers
    for (; column + 4 * kLanes <= d; column += 4 * kLanes) {
      AccumulateColumns<kRows, 4>(values, lanes, d, column, probabilities, acc, prefetcher);
    }
  }
  for (; column + 2 * kLanes <= d; column += 2 * kLanes) {
    AccumulateColumns<kRows, 2>(values, lanes, d, column, probabilities, acc, prefetcher);
  }
  for (; column < d; column += kLanes) {
    AccumulateColumns<kRows, 1>(values, lanes, d, column, probabilities, acc, prefetcher);
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
