// Layouts of K, V, queries and probabilities for the products of attention. An element is 4 bytes:
// a float, or with PairOp two bf16 of consecutive k. While K and V of a tile are packed, the 128
// rows of the next one are asked for, half of them by each. Thread-safety: pure functions over the
// caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_tile.h"
#if defined(__AVX512BF16__)
#include "kernels/cpu/transpose_avx512.h"
#endif

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

#if defined(__AVX512BF16__)

// out[element][lane] of 64 rows of `elements` 4-byte elements. REQUIRES: elements a multiple of 4.
[[maybe_unused]] static inline void TransposeRows(const uint8_t* const* rows,
                                                  uint32_t elements,
                                                  uint32_t* out,
                                                  RowPrefetcher* prefetcher) {
  const uint32_t chunks = elements / 4;
  const uint32_t prefetch_rows = (kTileTokens / 4 + chunks - 1) / chunks;
  for (uint32_t group = 0; group < kTileTokens; group += kLanes) {
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      prefetcher->Advance(prefetch_rows);
      __m512i columns[4];
      TransposeChunk(rows + group, chunk, columns);
      for (uint32_t j = 0; j < 4; ++j) {
        _mm512_storeu_si512(out + (4 * chunk + j) * kTileTokens + group, columns[j]);
      }
    }
  }
}

[[maybe_unused]] static inline void PackKeys(
    DType type, const uint8_t* const* rows, uint32_t d, uint32_t* out, RowPrefetcher* prefetcher) {
  TransposeRows(rows, type == DType::kBF16 ? d / 2 : d, out, prefetcher);
}

#else

// Four consecutive elements as floats.
SPINDLE_INLINE __m128 LoadFour(DType type, const uint8_t* row, uint32_t index) {
  if (type == DType::kF32) {
    return _mm_loadu_ps(reinterpret_cast<const float*>(row) + index);
  }
  const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + 2 * size_t{index}));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), halves));
}

[[maybe_unused]] static inline void PackKeys(
    DType type, const uint8_t* const* rows, uint32_t d, uint32_t* out, RowPrefetcher* prefetcher) {
  float* const floats = reinterpret_cast<float*>(out);
  for (uint32_t lane = 0; lane < kTileTokens; lane += 4) {
    prefetcher->Advance(4);
    for (uint32_t i = 0; i < d; i += 4) {
      __m128 a = LoadFour(type, rows[lane], i);
      __m128 b = LoadFour(type, rows[lane + 1], i);
      __m128 c = LoadFour(type, rows[lane + 2], i);
      __m128 e = LoadFour(type, rows[lane + 3], i);
      _MM_TRANSPOSE4_PS(a, b, c, e);
      _mm_storeu_ps(floats + size_t{i} * kTileTokens + lane, a);
      _mm_storeu_ps(floats + size_t{i + 1} * kTileTokens + lane, b);
      _mm_storeu_ps(floats + size_t{i + 2} * kTileTokens + lane, c);
      _mm_storeu_ps(floats + size_t{i + 3} * kTileTokens + lane, e);
    }
  }
}

#endif

// 16 bf16 as floats.
SPINDLE_INLINE void StoreWidened(uint32_t* to, const uint16_t* from) {
  for (uint32_t i = 0; i < kLanes; ++i) {
    to[i] = uint32_t{from[i]} << 16;
  }
}

#if defined(__AVX512BF16__)

// out[pair of lanes][d] of bf16 rows.
[[maybe_unused]] static inline void PackValuePairs(const uint8_t* const* rows,
                                                   uint32_t d,
                                                   uint32_t* out,
                                                   RowPrefetcher* prefetcher) {
  for (uint32_t lane = 0; lane < kTileTokens; lane += 2) {
    prefetcher->Advance(2);
    for (uint32_t i = 0; i < d; i += kLanes) {
      const auto load = [i](const uint8_t* row) __attribute__((always_inline)) {
        return _mm512_cvtepu16_epi32(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * size_t{i})));
      };
      const __m512i even = load(rows[lane]);
      const __m512i odd = _mm512_slli_epi32(load(rows[lane + 1]), 16);
      _mm512_storeu_si512(out + size_t{lane / 2} * d + i, _mm512_or_si512(even, odd));
    }
  }
}

#endif

// V as [lane or pair of lanes][d].
template <typename Op>
[[maybe_unused]] static inline void PackValues(
    DType type, const uint8_t* const* rows, uint32_t d, uint32_t* out, RowPrefetcher* prefetcher) {
#if defined(__AVX512BF16__)
  if constexpr (Op::kPairs) {
    PackValuePairs(rows, d, out, prefetcher);
    return;
  }
#endif
  if constexpr (!Op::kPairs) {
    for (uint32_t lane = 0; lane < kTileTokens; ++lane) {
      prefetcher->Advance(1);
      uint32_t* const to = out + size_t{lane} * d;
      if (type == DType::kF32) {
        __builtin_memcpy(to, rows[lane], size_t{d} * 4);
        continue;
      }
      for (uint32_t i = 0; i < d; i += kLanes) {
        StoreWidened(to + i, reinterpret_cast<const uint16_t*>(rows[lane]) + i);
      }
    }
  }
}

// A row of `count` floats (a multiple of 16) as operand elements: queries and probabilities.
template <typename Op>
SPINDLE_INLINE void PackOperandRow(DType type, const float* row, uint32_t count, uint32_t* out) {
  for (uint32_t i = 0; i < count; i += kLanes) {
    if constexpr (Op::kPairs) {
      StoreBf16(reinterpret_cast<uint8_t*>(out) + 2 * size_t{i}, Load(row + i));
    } else if (type == DType::kBF16) {
      StoreRounded(out + i, Load(row + i));
    } else {
      __builtin_memcpy(out + i, row + i, kLanes * sizeof(float));
    }
  }
}

// Whether any of 64 rows holds an infinity or a NaN.
[[maybe_unused]] static inline bool HasNonFinite(DType type,
                                                 const uint8_t* const* rows,
                                                 uint32_t d) {
  uint32_t found = 0;
  for (uint32_t lane = 0; lane < kTileTokens; ++lane) {
    if (type == DType::kBF16) {
      const uint16_t* const row = reinterpret_cast<const uint16_t*>(rows[lane]);
      for (uint32_t i = 0; i < d; ++i) {
        found |= (row[i] & 0x7F80U) == 0x7F80U ? 1U : 0U;
      }
    } else {
      const uint32_t* const row = reinterpret_cast<const uint32_t*>(rows[lane]);
      for (uint32_t i = 0; i < d; ++i) {
        found |= (row[i] & 0x7F800000U) == 0x7F800000U ? 1U : 0U;
      }
    }
  }
  return found != 0;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
