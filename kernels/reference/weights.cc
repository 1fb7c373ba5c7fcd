// Plain-loop packing and products: the oracle of the tests. Packed weights are the file's rows as
// they are.
#include <algorithm>
#include <cstring>

#include "kernels/codes.h"
#include "kernels/functions.h"

namespace spindle::kernels::reference {

namespace {

// One weight row, decoded into the scratch of the worker.
struct DecodedRow {
  uint8_t* codes;  // [k], quantised default mode
  float* scales;   // [k / group]
  float* minima;   // [k / group]
  float* values;   // [k], all other modes
};

bool UsesCodes(const PackedMatrix& weights) {
  return weights.row_format == RowFormat::kInt8;
}

int ToValues(DType type, const uint8_t* row, uint32_t k, bool round_to_bf16, float* values) {
  const int code = DequantizeRow(type, row, k, values);
  for (uint32_t i = 0; round_to_bf16 && i < k; ++i) {
    values[i] = Bf16ToFloat(FloatToBf16(values[i]));
  }
  return code;
}

float DotInt8(const PackedMatrix& weights, const DecodedRow& row, const uint8_t* x) {
  const uint32_t k = weights.num_inputs;
  const auto* high = reinterpret_cast<const int8_t*>(x);
  const auto* scales = reinterpret_cast<const float*>(x + size_t{2} * k);
  const uint32_t group = GroupElements(weights.source);
  const int32_t zero = ZeroCode(weights.source);
  float sum = 0.0F;
  for (uint32_t begin = 0; begin < k; begin += group) {
    int32_t dot = 0;
    int32_t code_sum = 0;
    for (uint32_t i = begin; i < begin + group; ++i) {
      const int32_t code = kInt8HighUnit * high[i] + high[k + i];
      dot += (static_cast<int32_t>(row.codes[i]) - zero) * code;
      code_sum += code;
    }
    const float x_scale = scales[begin / kActivationBlock];
    sum += static_cast<float>(dot) * (row.scales[begin / group] * x_scale);
    if (HasMinimum(weights.source)) {
      sum += row.minima[begin / group] * (x_scale * static_cast<float>(code_sum));
    }
  }
  return sum;
}

float DotFloat(const PackedMatrix& weights, const DecodedRow& row, const uint8_t* x) {
  float sum = 0.0F;
  for (uint32_t i = 0; i < weights.num_inputs; ++i) {
    const DType type = weights.row_format == RowFormat::kBf16 ? DType::kBF16 : DType::kF32;
    sum += row.values[i] * LoadFloat(type, x, i);
  }
  return sum;
}

int Decode(const PackedMatrix& weights, uint32_t output, const DecodedRow& out) {
  const uint32_t k = weights.num_inputs;
  const uint8_t* row =
      static_cast<const uint8_t*>(weights.data) + RowBytes(weights.source, k) * output;
  if (!UsesCodes(weights)) {
    return ToValues(weights.source, row, k, weights.row_format == RowFormat::kBf16, out.values);
  }
  DecodeCodes(weights.source, row, k, out.codes);
  for (uint32_t i = 0; i < k / GroupElements(weights.source); ++i) {
    DecodeScale(weights.source, row, i, &out.scales[i], &out.minima[i]);
  }
  return kOk;
}

int GemmPanel(const GemmArgs& args, uint32_t panel, Exec* exec) {
  const PackedMatrix& weights = *args.weights;
  const size_t k = weights.num_inputs;
  if (exec->scratch_bytes < 4 * k + k) {
    return kScratchTooSmall;
  }
  auto* scratch = static_cast<uint8_t*>(exec->scratch);
  const DecodedRow row{.codes = scratch + 4 * k,
                       .scales = reinterpret_cast<float*>(scratch),
                       .minima = reinterpret_cast<float*>(scratch) + k / 2,
                       .values = reinterpret_cast<float*>(scratch)};
  const uint32_t end = std::min((panel + 1) * kPanelOutputs, weights.num_outputs);
  for (uint32_t output = panel * kPanelOutputs; output < end; ++output) {
    if (const int code = Decode(weights, output, row); code != kOk) {
      return code;
    }
    for (uint32_t i = 0; i < args.num_rows; ++i) {
      const uint8_t* x = static_cast<const uint8_t*>(args.x) + args.x_stride_bytes * i;
      float sum = UsesCodes(weights) ? DotInt8(weights, row, x) : DotFloat(weights, row, x);
      if (args.bias != nullptr) {
        sum += args.bias[output];
      }
      float* y = args.y + args.y_stride * i + output;
      *y = args.accumulate ? *y + sum : sum;
    }
  }
  return kOk;
}

}  // namespace

uint64_t PackedBytes(DType type, uint32_t num_outputs, uint32_t k, ComputeMode) {
  if (!ValidRowLength(type, k)) {
    return 0;
  }
  return (uint64_t{num_outputs} * RowBytes(type, k) + 63) / 64 * 64;
}

RowFormat RowFormatOf(DType type, ComputeMode mode) {
  if (mode == ComputeMode::kExact) {
    return RowFormat::kF32;
  }
  return IsQuantised(type) ? RowFormat::kInt8 : RowFormat::kBf16;
}

int Pack(DType type,
         const void* source_rows,
         ComputeMode,
         uint32_t num_outputs,
         uint32_t k,
         void* packed,
         WorkRange panels) {
  if (!ValidRowLength(type, k)) {
    return kUnsupported;
  }
  const size_t row_bytes = RowBytes(type, k);
  const size_t begin = std::min(panels.begin * kPanelOutputs, num_outputs) * row_bytes;
  const size_t end = std::min(panels.end * kPanelOutputs, num_outputs) * row_bytes;
  std::memcpy(static_cast<uint8_t*>(packed) + begin,
              static_cast<const uint8_t*>(source_rows) + begin,
              end - begin);
  return kOk;
}

int Gemm(const GemmGroup& group, WorkRange units, Exec* exec) {
  uint32_t first = 0;
  for (uint32_t part = 0; part < group.num_parts; ++part) {
    const uint32_t panels = NumPanels(group.parts[part].weights->num_outputs);
    for (uint32_t i = 0; i < panels; ++i) {
      if (first + i >= units.begin && first + i < units.end) {
        if (const int code = GemmPanel(group.parts[part], i, exec); code != kOk) {
          return code;
        }
      }
    }
    first += panels;
  }
  return kOk;
}

int DequantizeRow(DType type, const void* row, uint32_t k, float* out) {
  if (!ValidRowLength(type, k)) {
    return kUnsupported;
  }
  DequantizeElements(type, static_cast<const uint8_t*>(row), k, out);
  return kOk;
}

}  // namespace spindle::kernels::reference
