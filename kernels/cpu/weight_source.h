// The codes and scales of a packed panel, as an int8 product takes them. Thread-safety: a value
// that borrows the panel's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/layout.h"
#include "kernels/cpu/packed_scales.h"
#include "kernels/cpu/simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

template <DType kType>
class PackedSource {
 public:
  static constexpr layout::CodeLayout kCodes = layout::CodeLayoutOf(kType);
  static constexpr int kMaxCode = kCodes.max_code;
  static constexpr uint32_t kGroup = GroupElements(kType);
  static constexpr bool kHasMinimum = HasMinimum(kType);
  // Whether dot products need -zero · Σ x added.
  static constexpr bool kCorrected = ZeroCode(kType) != 0 && kUsesZeroCorrection<kMaxCode>;

  PackedSource(const uint8_t* panel, uint32_t k)
      : scales_(panel), codes_(panel + layout::ScaleBytes(kCodes.scale_kind, k)) {}

  // The 8 code vectors of 32 inputs.
  SPINDLE_INLINE_MEMBER void Codes(uint32_t block, CodeVec* out) const {
    if constexpr (kCodes.nibbles) {
      const uint8_t* from = codes_ + 4 * layout::kGroupCodeBytes * block;
      SPINDLE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const CodeVec both = LoadCodes(from + layout::kGroupCodeBytes * i);
        out[i] = LowNibbles(both);
        out[i + 4] = HighNibbles(both);
      }
    } else {
      const uint8_t* from = codes_ + 8 * layout::kGroupCodeBytes * block;
      SPINDLE_UNROLL
      for (uint32_t i = 0; i < 8; ++i) {
        out[i] = LoadCodes(from + layout::kGroupCodeBytes * i);
      }
    }
  }

  // Asks for as many bytes further on as a block has, scales included: those of the panels form one
  // sequence, of which the codes being read are never nearer than kAhead.
  SPINDLE_INLINE_MEMBER void Prefetch(uint32_t block) const {
    constexpr size_t kBlockBytes =
        layout::ScaleBytes(kCodes.scale_kind, kSuperBlock) / (kSuperBlock / kActivationBlock) +
        (kCodes.nibbles ? 4 : 8) * layout::kGroupCodeBytes;
    // Into the second cache: the first one's few requests in flight are for loads. About 0.5 µs of
    // one core's share of the memory bandwidth ahead; runs over into the next panel.
    constexpr size_t kAhead = 16384;
    const uint8_t* from = codes_ + kBlockBytes * block + kAhead;
    for (size_t i = 0; i < kBlockBytes; i += 64) {
      __builtin_prefetch(from + i, 0, 2);
    }
  }

  SPINDLE_INLINE_MEMBER F32x16 Scale(uint32_t group) const { return scales_.Scale(group); }

  // REQUIRES: kHasMinimum
  SPINDLE_INLINE_MEMBER F32x16 Minimum(uint32_t block) const { return scales_.Minimum(block); }

 private:
  PackedScales<kType> scales_;
  const uint8_t* codes_;
};

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
