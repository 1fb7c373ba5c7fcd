// Row-wise kernels of a transformer layer: normalisation, activation, conversion to the operand
// format of a product, embedding look-up. Work unit = one row; rows are independent, so any split
// gives the same bits. Only kBf16Columns ties rows together: there a range starts at a multiple of
// kColumnGroupRows and ends at one or at num_rows (else kInvalidArgument). Thread-safety: pure
// functions over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/api/exec.h"
#include "kernels/api/gemm.h"

namespace spindle::kernels {

// out row = prepare(x · w / rms(x)), rms = sqrt(mean(x²) + eps) in fp32; w null = no weight.
struct NormRowsArgs {
  const float* x;       // [num_rows][x_stride]
  size_t x_stride;      // floats
  const float* weight;  // [k] or null
  float eps;
  uint32_t k;
  uint32_t num_rows;
  RowFormat format;  // of `out`
  void* out;         // [num_rows] rows, `out_stride_bytes` apart
  size_t out_stride_bytes;
};

// out row = prepare(x).
struct PrepareRowsArgs {
  const float* x;  // [num_rows][x_stride]
  size_t x_stride;
  uint32_t k;
  uint32_t num_rows;
  RowFormat format;
  void* out;
  size_t out_stride_bytes;
};

// out row = prepare(silu(gate) · up), silu(g) = g / (1 + exp(-g)).
struct SwiGluRowsArgs {
  const float* gate;  // [num_rows][stride]
  const float* up;    // [num_rows][stride]
  size_t stride;      // floats, of both
  uint32_t k;
  uint32_t num_rows;
  RowFormat format;
  void* out;
  size_t out_stride_bytes;
};

// out row = dequantised table row ids[i]. REQUIRES: 0 <= ids[i] < table_rows (else
// kInvalidArgument).
struct EmbedRowsArgs {
  const void* table;  // [table_rows] rows of RowBytes(type, k), in the file's own layout
  DType type;
  uint32_t table_rows;
  uint32_t k;
  const int32_t* ids;  // [num_rows]
  uint32_t num_rows;
  float* out;  // [num_rows][out_stride]
  size_t out_stride;
};

}  // namespace spindle::kernels
