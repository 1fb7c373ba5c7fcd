// Where an int8 product takes the codes and scales of a panel from: the packed bytes as they are,
// or a copy with one byte per code and fp32 scales, made once when many rows share it. Both give
// the same numbers. Thread-safety: values that borrow the panel's memory.
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

  SPINDLE_INLINE_MEMBER void Prefetch(uint32_t block) const {
    constexpr size_t kBlockBytes = (kCodes.nibbles ? 4 : 8) * layout::kGroupCodeBytes;
    // Into the second cache: the first one's few requests in flight are for loads. About 0.4 µs of
    // one core's share of the memory bandwidth ahead; runs over into the next panel.
    constexpr size_t kAhead = 8192;
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

// Memory of an expanded panel of k inputs.
struct ExpandedPanel {
  uint8_t* codes;  // [k / 4] groups of 64 bytes
  float* scales;   // [k / group][16]
  float* minima;   // [k / 32][16], where the type has minima
};

template <DType kType>
class ExpandedSource {
 public:
  static constexpr int kMaxCode = PackedSource<kType>::kMaxCode;
  static constexpr uint32_t kGroup = PackedSource<kType>::kGroup;
  static constexpr bool kHasMinimum = PackedSource<kType>::kHasMinimum;
  static constexpr bool kCorrected = PackedSource<kType>::kCorrected;

  explicit ExpandedSource(const ExpandedPanel& panel) : panel_(panel) {}

  SPINDLE_INLINE_MEMBER void Codes(uint32_t block, CodeVec* out) const {
    SPINDLE_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      out[i] = LoadCodes(panel_.codes + layout::kGroupCodeBytes * (size_t{8} * block + i));
    }
  }

  SPINDLE_INLINE_MEMBER void Prefetch(uint32_t) const {}

  SPINDLE_INLINE_MEMBER F32x16 Scale(uint32_t group) const {
    return Load(panel_.scales + size_t{kPanelOutputs} * group);
  }

  SPINDLE_INLINE_MEMBER F32x16 Minimum(uint32_t group) const {
    return Load(panel_.minima + size_t{kPanelOutputs} * group);
  }

 private:
  ExpandedPanel panel_;
};

// Copies a panel; the codes become code - zero.
template <DType kType>
SPINDLE_INLINE void Expand(const PackedSource<kType>& from,
                           uint32_t k,
                           int32_t zero,
                           const ExpandedPanel& to) {
  constexpr uint32_t kGroupsPerBlock = kActivationBlock / PackedSource<kType>::kGroup;
  for (uint32_t block = 0; block < k / kActivationBlock; ++block) {
    CodeVec codes[8];
    from.Prefetch(block);
    from.Codes(block, codes);
    SPINDLE_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      StoreCodes(to.codes + layout::kGroupCodeBytes * (size_t{8} * block + i),
                 SubtractZero(codes[i], zero));
    }
    for (uint32_t group = block * kGroupsPerBlock; group < (block + 1) * kGroupsPerBlock; ++group) {
      Store(to.scales + size_t{kPanelOutputs} * group, from.Scale(group));
    }
    if constexpr (PackedSource<kType>::kHasMinimum) {
      Store(to.minima + size_t{kPanelOutputs} * block, from.Minimum(block));
    }
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
