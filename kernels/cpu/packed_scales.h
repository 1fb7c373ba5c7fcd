// Scales and minima of a packed panel. Thread-safety: values that borrow the panel's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/layout.h"
#include "kernels/cpu/simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

template <DType kType>
class PackedScales {
 public:
  static constexpr layout::CodeLayout kCodes = layout::CodeLayoutOf(kType);

  explicit PackedScales(const uint8_t* panel) : scales_(panel) {}

  // Of 16 or 32 inputs (GroupElements), 16 outputs.
  SPINDLE_INLINE_MEMBER F32x16 Scale(uint32_t group) const {
    using layout::ScaleKind;
    if constexpr (kCodes.scale_kind == ScaleKind::kHalf) {
      return LoadHalf(scales_ + layout::kHalfVectorBytes * group);
    } else if constexpr (kCodes.scale_kind == ScaleKind::kHalfMin) {
      return LoadHalf(scales_ + 2 * layout::kHalfVectorBytes * group);
    } else if constexpr (kCodes.scale_kind == ScaleKind::kSuperMin) {
      const uint8_t* super = scales_ + layout::kSuperMinBytes * (group / 8);
      return Mul(LoadHalf(super), LoadU8(SubScales(super, group)));
    } else {
      const uint8_t* super = scales_ + layout::kSuper16Bytes * (group / 16);
      return Mul(LoadHalf(super),
                 LoadS8(super + layout::kHalfVectorBytes + size_t{kPanelOutputs} * (group % 16)));
    }
  }

  // Of 32 inputs. REQUIRES: HasMinimum(kType)
  SPINDLE_INLINE_MEMBER F32x16 Minimum(uint32_t group) const {
    if constexpr (kCodes.scale_kind == layout::ScaleKind::kHalfMin) {
      return LoadHalf(scales_ + 2 * layout::kHalfVectorBytes * group + layout::kHalfVectorBytes);
    } else {
      const uint8_t* super = scales_ + layout::kSuperMinBytes * (group / 8);
      return Mul(Sub(Zero(), LoadHalf(super + layout::kHalfVectorBytes)),
                 LoadU8(SubScales(super, group) + kPanelOutputs));
    }
  }

 private:
  static const uint8_t* SubScales(const uint8_t* super, uint32_t group) {
    return super + 2 * layout::kHalfVectorBytes + size_t{2} * kPanelOutputs * (group % 8);
  }

  const uint8_t* scales_;
};

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
