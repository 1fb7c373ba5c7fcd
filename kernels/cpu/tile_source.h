// Weights of a panel as AMX tiles: 32 inputs of 16 outputs in bf16, one output per row. Quantised
// weights are dequantised and rounded to the nearest bf16 on the way. Thread-safety: values that
// borrow the panel's memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "kernels/cpu/layout.h"
#include "kernels/cpu/packed_scales.h"
#include "kernels/cpu/simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// Asks for `bytes` that will be wanted soon; about 1 µs of one core's share of the memory
// bandwidth.
SPINDLE_INLINE void PrefetchCodes(const uint8_t* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(from + i, 0, 2);
  }
}

template <DType kType>
class CodeTiles {
 public:
  static constexpr bool kExpanded = true;
  static constexpr layout::CodeLayout kCodes = layout::CodeLayoutOf(kType);

  CodeTiles(const uint8_t* panel, uint32_t k)
      : scales_(panel), codes_(panel + layout::ScaleBytes(kCodes.scale_kind, k)) {}

  // Writes tile `block`; asks for the codes `ahead_bytes` further on.
  SPINDLE_INLINE_MEMBER void Expand(uint32_t block, size_t ahead_bytes, uint8_t* tile) const {
    const uint8_t* from = codes_ + kBlockBytes * block;
    PrefetchCodes(from + ahead_bytes, kBlockBytes);
    alignas(64) float scales[kGroupsPerBlock][kPanelOutputs];
    alignas(64) float offsets[kGroupsPerBlock][kPanelOutputs];
    SPINDLE_UNROLL
    for (uint32_t i = 0; i < kGroupsPerBlock; ++i) {
      const F32x16 scale = scales_.Scale(block * kGroupsPerBlock + i);
      Store(scales[i], scale);
      if constexpr (HasMinimum(kType)) {
        Store(offsets[i], scales_.Minimum(block));
      } else {  // exact: a power of two, or few bits on both sides
        Store(offsets[i], Mul(scale, Splat(-static_cast<float>(ZeroCode(kType)))));
      }
    }
    // Broadcasts from memory cost no arithmetic port; the compiler would keep the vectors in
    // registers and permute them.
    __asm__("" : "+m"(scales), "+m"(offsets));
    if constexpr (kCodes.nibbles) {
      ExpandNibbles(from, scales[0], offsets[0], tile);
    } else {
      ExpandBytes(from, scales, offsets, tile);
    }
  }

 private:
  static constexpr size_t kBlockBytes = layout::BlockCodeBytes(kCodes);
  static constexpr uint32_t kGroupsPerBlock = kActivationBlock / GroupElements(kType);

  // An output has 16 possible values per block: a table in one register, whose high halves are
  // looked up 32 at a time. Codes in bits 4 · kPlace … of each word.
  template <int kPlace>
  static SPINDLE_INLINE_MEMBER void ExpandOutput(__m512i words,
                                                 float scale,
                                                 float offset,
                                                 uint8_t* out) {
    const F32x16 ramp = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const F32x16 values = MulAdd(ramp, Splat(scale), Splat(offset));
    const __m512i table = _mm512_add_epi32(_mm512_castps_si512(values), _mm512_set1_epi32(0x8000));
    // Bits 1 … 4 select the element, bit 0 its high half; the permutation ignores the others.
    __m512i index;
    if constexpr (kPlace == 0) {
      index = _mm512_slli_epi16(words, 1);
    } else {
      index = _mm512_srli_epi16(words, 4 * kPlace - 1);
    }
    index = _mm512_or_si512(index, _mm512_set1_epi16(1));
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(index, table));
  }

  static SPINDLE_INLINE_MEMBER void ExpandNibbles(const uint8_t* codes,
                                                  const float* scales,
                                                  const float* offsets,
                                                  uint8_t* tile) {
    SPINDLE_UNROLL
    for (uint32_t output = 0; output < kPanelOutputs; output += 4) {
      const __m512i words = _mm512_loadu_si512(codes + layout::kGroupCodeBytes * (output / 4));
      uint8_t* const out = tile + size_t{64} * output;
      ExpandOutput<0>(words, scales[output], offsets[output], out);
      ExpandOutput<1>(words, scales[output + 1], offsets[output + 1], out + 64);
      ExpandOutput<2>(words, scales[output + 2], offsets[output + 2], out + 128);
      ExpandOutput<3>(words, scales[output + 3], offsets[output + 3], out + 192);
    }
  }

  static SPINDLE_INLINE_MEMBER void ExpandBytes(const uint8_t* codes,
                                                const float (*scales)[kPanelOutputs],
                                                const float (*offsets)[kPanelOutputs],
                                                uint8_t* tile) {
    constexpr uint32_t kSecond = kGroupsPerBlock - 1;  // group of inputs 16 … 31
    SPINDLE_UNROLL
    for (uint32_t output = 0; output < kPanelOutputs; ++output) {
      const uint8_t* from = codes + size_t{kActivationBlock} * output;
      const F32x16 low = MulAdd(LoadU8(from), Splat(scales[0][output]), Splat(offsets[0][output]));
      const F32x16 high = MulAdd(
          LoadU8(from + 16), Splat(scales[kSecond][output]), Splat(offsets[kSecond][output]));
      _mm512_storeu_si512(tile + size_t{64} * output,
                          std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  }

  PackedScales<kType> scales_;
  const uint8_t* codes_;
};

// bf16 weights lie in memory as tiles.
class StoredTiles {
 public:
  static constexpr bool kExpanded = false;

  StoredTiles(const uint8_t* panel, uint32_t /*k*/) : tiles_(panel) {}

  SPINDLE_INLINE_MEMBER const uint8_t* Tile(uint32_t block, size_t ahead_bytes) const {
    const uint8_t* tile = tiles_ + layout::kTileBytes * block;
    PrefetchCodes(tile + ahead_bytes, layout::kTileBytes);
    return tile;
  }

 private:
  const uint8_t* tiles_;
};

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
