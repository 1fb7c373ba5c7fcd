// Layout of packed weights. A panel holds 16 outputs and all their inputs.
//
// Quantised types in default mode: scales, padded to 64 bytes, then codes. Scales, 16 outputs wide
// each:
//   kHalf       per 32 inputs: fp16 scale
//   kHalfMin    per 32 inputs: fp16 scale, fp16 minimum
//   kSuperMin   per 256 inputs: fp16 scale, fp16 minimum, then 8 × (byte scale, byte minimum)
//   kSuper16    per 256 inputs: fp16 scale, then 16 × signed byte scale (of 16 inputs each)
// Codes of 32 inputs, for rows of
//   kInt8         8 groups of 64 bytes, byte 4 · output + (input mod 4) of group input / 4; in
//   4-bit
//                 form group j (low) and j + 4 (high) share bytes
//   kBf16Columns  32 bytes per output; in 4-bit form 4 groups of 64 bytes, whose 16-bit element i
//                 has the codes of input i of outputs 4 · group + (0, 1, 2, 3), lowest bits first
//
// Other weights, inputs padded with zeros to 32 in the bf16 forms:
//   kF32          per input 16 floats
//   kBf16         per input pair 16 × (even, odd) bf16
//   kBf16Columns  per 32 inputs 16 × 32 bf16
//
// Outputs beyond the matrix have zero scales or values. Thread-safety: constants.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/gemm.h"
#include "kernels/codes.h"

namespace spindle::kernels::layout {

enum class ScaleKind : uint8_t { kHalf, kHalfMin, kSuperMin, kSuper16 };

struct CodeLayout {
  bool nibbles;
  ScaleKind scale_kind;
  int32_t max_code;
};

// REQUIRES: IsQuantised(type)
static constexpr CodeLayout CodeLayoutOf(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return {true, ScaleKind::kHalf, 15};
    case DType::kQ4_1:
      return {true, ScaleKind::kHalfMin, 15};
    case DType::kQ5_0:
      return {false, ScaleKind::kHalf, 31};
    case DType::kQ5_1:
      return {false, ScaleKind::kHalfMin, 31};
    case DType::kQ4_K:
      return {true, ScaleKind::kSuperMin, 15};
    case DType::kQ5_K:
      return {false, ScaleKind::kSuperMin, 31};
    case DType::kQ6_K:
      return {false, ScaleKind::kSuper16, 63};
    default:
      return {false, ScaleKind::kHalf, 255};
  }
}

inline constexpr size_t kHalfVectorBytes = size_t{2} * kPanelOutputs;
inline constexpr size_t kGroupCodeBytes = size_t{4} * kPanelOutputs;  // codes of four inputs
// With kBf16Columns: 32 inputs as one tile of bf16.
inline constexpr size_t kTileBytes = size_t{2} * kActivationBlock * kPanelOutputs;
inline constexpr size_t kSuperMinBytes = 2 * kHalfVectorBytes + size_t{16} * kPanelOutputs;
inline constexpr size_t kSuper16Bytes = kHalfVectorBytes + size_t{16} * kPanelOutputs;

static constexpr size_t RoundUp64(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

static constexpr size_t ScaleBytes(ScaleKind kind, size_t k) {
  switch (kind) {
    case ScaleKind::kHalf:
      return RoundUp64(k / kActivationBlock * kHalfVectorBytes);
    case ScaleKind::kHalfMin:
      return k / kActivationBlock * 2 * kHalfVectorBytes;
    case ScaleKind::kSuperMin:
      return k / kSuperBlock * kSuperMinBytes;
    case ScaleKind::kSuper16:
      return RoundUp64(k / kSuperBlock * kSuper16Bytes);
  }
  return 0;
}

// Of 32 inputs.
static constexpr size_t BlockCodeBytes(CodeLayout codes) {
  return size_t{kActivationBlock} * kPanelOutputs / (codes.nibbles ? 2 : 1);
}

// Bytes from one panel to the next.
static constexpr size_t PanelBytes(DType type, RowFormat format, size_t k) {
  if (format == RowFormat::kF32) {
    return 4 * k * kPanelOutputs;
  }
  if (format == RowFormat::kBf16 || !IsQuantised(type)) {
    return 2 * ((k + 31) / 32 * 32) * kPanelOutputs;
  }
  const CodeLayout codes = CodeLayoutOf(type);
  return ScaleBytes(codes.scale_kind, k) + k * kPanelOutputs / (codes.nibbles ? 2 : 1);
}

}  // namespace spindle::kernels::layout
