// The pieces that the products of all row formats share. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/api/gemm.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// Panels [begin, end) of one product.
struct PanelRange {
  uint32_t begin;
  uint32_t end;
};

// Calls `visit` with an integral constant that is the quantised type `type`.
template <typename Visit>
int VisitQuantised(DType type, Visit visit) {
  switch (type) {
    case DType::kQ8_0:
      return visit(std::integral_constant<DType, DType::kQ8_0>{});
    case DType::kQ4_0:
      return visit(std::integral_constant<DType, DType::kQ4_0>{});
    case DType::kQ4_1:
      return visit(std::integral_constant<DType, DType::kQ4_1>{});
    case DType::kQ5_0:
      return visit(std::integral_constant<DType, DType::kQ5_0>{});
    case DType::kQ5_1:
      return visit(std::integral_constant<DType, DType::kQ5_1>{});
    case DType::kQ4_K:
      return visit(std::integral_constant<DType, DType::kQ4_K>{});
    case DType::kQ5_K:
      return visit(std::integral_constant<DType, DType::kQ5_K>{});
    case DType::kQ6_K:
      return visit(std::integral_constant<DType, DType::kQ6_K>{});
    default:
      return kUnsupported;
  }
}

// Rows that are worked on together, so that they stay in the second-level cache while the panels
// pass: 1 MiB of them, in whole pairs of tiles.
SPINDLE_INLINE uint32_t RowsPerBlock(size_t stride_bytes) {
  constexpr size_t kBlockBytes = size_t{1} << 20;
  constexpr uint32_t kMultiple = 32;
  const uint32_t rows = static_cast<uint32_t>(kBlockBytes / stride_bytes) / kMultiple * kMultiple;
  return rows < kMultiple ? kMultiple : rows;
}

// Scratch handed out front to back; each piece is 64-byte aligned.
class ScratchCursor {
 public:
  explicit ScratchCursor(const Exec& exec)
      : next_(static_cast<uint8_t*>(exec.scratch)), left_(exec.scratch_bytes) {}

  // Null when there is not enough.
  uint8_t* Take(size_t bytes) {
    const size_t rounded = layout::RoundUp64(bytes);
    if (rounded > left_) {
      return nullptr;
    }
    uint8_t* taken = next_;
    next_ += rounded;
    left_ -= rounded;
    return taken;
  }

 private:
  uint8_t* next_;
  size_t left_;
};

// Writes rows [first_row, first_row + num_rows) of one panel: y (+)= sums + bias. The last panel
// may be narrower.
//   sums  [num_rows][16]
[[maybe_unused]] static void StoreOutputs(const GemmArgs& args,
                                          uint32_t first_row,
                                          uint32_t num_rows,
                                          uint32_t panel,
                                          const float* sums) {
  const uint32_t first = panel * kPanelOutputs;
  const uint32_t left = args.weights->num_outputs - first;
  const float* bias = args.bias == nullptr ? nullptr : args.bias + first;
  float* y = args.y + args.y_stride * first_row + first;
  for (uint32_t row = 0; row < num_rows; ++row, y += args.y_stride, sums += kPanelOutputs) {
    if (left >= kPanelOutputs) {
      F32x16 value = Load(sums);
      if (bias != nullptr) {
        value = Add(value, Load(bias));
      }
      Store(y, args.accumulate ? Add(Load(y), value) : value);
      continue;
    }
    for (uint32_t i = 0; i < left; ++i) {
      const float value = bias == nullptr ? sums[i] : sums[i] + bias[i];
      y[i] = args.accumulate ? y[i] + value : value;
    }
  }
}

// Products by row format; see KernelTable::gemm. A table has GemmInt8 or GemmColumns.
int GemmInt8(const GemmArgs& args, PanelRange panels, Exec* exec);
int GemmColumns(const GemmArgs& args, PanelRange panels, Exec* exec);
int GemmFloat(const GemmArgs& args, PanelRange panels, Exec* exec);

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
