// Matrix products y = x · Wᵀ (+ bias, + y) with weights packed once at load, for prefill, batched
// and single decode. Functions are `static`: per-ISA objects include this header (see
// base/dtype.h). Thread-safety: pure functions over the caller's memory; calls with disjoint ranges
// may run at the same time.
//
// Arithmetic (the "dot order" law): one fp32 accumulator per (row, output), blocks of k ascending;
// int8 blocks are exact in int32 before they are scaled. Work is divided over outputs only, never
// over k. A product with one row gives the same bits as the same row inside any larger product, for
// any range split and thread count.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/api/exec.h"

namespace spindle::kernels {

// Arithmetic class chosen at load for the whole model.
enum class ComputeMode : uint8_t {
  kDefault,  // int8 or bf16 operands, as the table says (KernelTable::row_format)
  kExact,    // weights dequantised to fp32, fp32 operands and sums
};

// One plane alone would cost 1.7 % of the arg-maxes of a small model. Both planes stay within ±127.
inline constexpr int32_t kInt8HighUnit = 254;
inline constexpr int32_t kInt8MaxCode = 127 * kInt8HighUnit + 126;

// Rows that kBf16Columns keeps together.
inline constexpr uint32_t kColumnGroupRows = 16;

// How the rows of x must be prepared for a packed matrix (PrepareRows). Bytes between the last
// element and the row's end at a multiple of 64 are zero.
enum class RowFormat : uint8_t {
  kF32,   // float[k]
  kBf16,  // bf16[k], round to nearest even
  kInt8,  // codes of 16 bits in two planes: int8 high[k], int8 low[k], then float scale[k/32], then
          // float sum[k/32] (scale × Σ codes of the block); code = kInt8HighUnit · high + low =
          // round(x/scale), scale = max|x|/kInt8MaxCode per 32 elements; a block below 2^-100
          // counts as zero, one that is not finite has scale NaN
  // Rows of kBf16 in groups of 16 (the last one may be smaller), pairs of elements interleaved:
  // pair i of row j of a group of n rows is 4-byte element i · n + j, counted from the place of the
  // group's first row. A product takes the rows of one PrepareRows call from its first on.
  kBf16Columns,
};

// Outputs per panel: the unit of work and of packing.
inline constexpr uint32_t kPanelOutputs = 16;

inline constexpr size_t kNumRowFormats = 4;

// A weight matrix in this ISA's layout. The bytes are owned by the caller (model weights arena),
// 64-byte aligned.
struct PackedMatrix {
  const void* data;      // panels, layout private to the ISA that packed it
  uint64_t bytes;        // size of data
  uint32_t num_outputs;  // n
  uint32_t num_inputs;   // k
  DType source;          // stored type
  ComputeMode mode;
  RowFormat row_format;  // what x must be prepared as
};

// One product of a group that shares no output memory with the others.
struct GemmArgs {
  const PackedMatrix* weights;
  const void* x;          // [num_rows] prepared rows, `x_stride_bytes` apart
  size_t x_stride_bytes;  // ≥ PreparedRowBytes(weights->row_format, k), multiple of 64
  float* y;               // [num_rows][y_stride], columns [0, n) written
  size_t y_stride;        // floats
  const float* bias;      // [n] or null
  uint32_t num_rows;
  bool accumulate;  // y += instead of y =
};

// Products run as one parallel section; work units = panels of all parts in order.
struct GemmGroup {
  const GemmArgs* parts;
  uint32_t num_parts;
};

[[nodiscard]] static inline uint32_t NumPanels(uint32_t num_outputs) {
  return (num_outputs + kPanelOutputs - 1) / kPanelOutputs;
}

[[nodiscard]] static inline uint32_t GemmUnits(const GemmGroup& group) {
  uint32_t units = 0;
  for (uint32_t i = 0; i < group.num_parts; ++i) {
    units += NumPanels(group.parts[i].weights->num_outputs);
  }
  return units;
}

// Bytes of one prepared row, rounded up to 64. REQUIRES: k a multiple of 32 for kInt8.
[[nodiscard]] static inline size_t PreparedRowBytes(RowFormat format, size_t k) {
  size_t bytes = 4 * k;
  if (format == RowFormat::kBf16 || format == RowFormat::kBf16Columns) {
    bytes = 2 * k;
  } else if (format == RowFormat::kInt8) {
    bytes = 2 * k + 8 * (k / 32);
  }
  return (bytes + 63) / 64 * 64;
}

}  // namespace spindle::kernels
