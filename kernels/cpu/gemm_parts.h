// The pieces that the products of all row formats share. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/gemm.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// Panels [begin, end) of one product.
struct PanelRange {
  uint32_t begin;
  uint32_t end;
};

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

// Writes the 16 outputs of one row of a panel: y (+)= sums + bias; the last panel may be narrower.
SPINDLE_INLINE void StoreOutputs(const GemmArgs& args, uint32_t row, uint32_t panel, F32x16 sums) {
  const uint32_t first = panel * kPanelOutputs;
  float* y = args.y + args.y_stride * row + first;
  if (first + kPanelOutputs <= args.weights->num_outputs) {
    if (args.bias != nullptr) {
      sums = Add(sums, Load(args.bias + first));
    }
    Store(y, args.accumulate ? Add(Load(y), sums) : sums);
    return;
  }
  float values[kPanelOutputs];
  Store(values, sums);
  for (uint32_t i = 0; first + i < args.weights->num_outputs; ++i) {
    const float value = args.bias == nullptr ? values[i] : values[i] + args.bias[first + i];
    y[i] = args.accumulate ? y[i] + value : value;
  }
}

// Products by row format; see KernelTable::gemm.
int GemmInt8(const GemmArgs& args, PanelRange panels, Exec* exec);
int GemmFloat(const GemmArgs& args, PanelRange panels, Exec* exec);

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
