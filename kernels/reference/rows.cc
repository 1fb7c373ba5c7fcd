// Plain-loop row kernels: the oracle of the tests.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/codes.h"
#include "kernels/functions.h"

namespace spindle::kernels::reference {

namespace {

void PrepareInt8Block(const float* x, int8_t* high, int8_t* low, float* scale, float* sum) {
  float max = 0.0F;
  bool finite = true;
  for (uint32_t i = 0; i < kActivationBlock; ++i) {
    finite = finite && std::isfinite(x[i]);
    max = std::max(max, std::fabs(x[i]));
  }
  if (!finite) {
    std::memset(high, 0, kActivationBlock);
    std::memset(low, 0, kActivationBlock);
    *scale = NAN;
    *sum = NAN;
    return;
  }
  const bool negligible = max < kMinBlockMagnitude;
  const float inverse = negligible ? 0.0F : static_cast<float>(kInt8MaxCode) / max;
  int32_t total = 0;
  for (uint32_t i = 0; i < kActivationBlock; ++i) {
    const auto code = static_cast<int32_t>(std::nearbyint(x[i] * inverse));
    const auto unit = static_cast<double>(kInt8HighUnit);
    high[i] = static_cast<int8_t>(std::nearbyint(code / unit));
    low[i] = static_cast<int8_t>(code - kInt8HighUnit * high[i]);
    total += code;
  }
  *scale = negligible ? 0.0F : max / static_cast<float>(kInt8MaxCode);
  *sum = *scale * static_cast<float>(total);
}

// Writes values [begin, begin + count) of a prepared row; count is 32 except at the end of a row.
void PrepareChunk(RowFormat format,
                  const float* values,
                  uint32_t k,
                  uint32_t begin,
                  uint32_t count,
                  uint8_t* out) {
  if (format == RowFormat::kF32) {
    std::memcpy(out + size_t{4} * begin, values, size_t{4} * count);
  } else if (format == RowFormat::kBf16) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint16_t bits = FloatToBf16(values[i]);
      std::memcpy(out + size_t{2} * (begin + i), &bits, sizeof(bits));
    }
  } else {
    const uint32_t block = begin / kActivationBlock;
    auto* scales = reinterpret_cast<float*>(out + size_t{2} * k);
    PrepareInt8Block(values,
                     reinterpret_cast<int8_t*>(out) + begin,
                     reinterpret_cast<int8_t*>(out) + k + begin,
                     &scales[block],
                     &scales[k / kActivationBlock + block]);
  }
}

// Prepares value(0) … value(k - 1).
template <typename Value>
void PrepareValues(RowFormat format, uint32_t k, uint8_t* out, Value value) {
  std::memset(out, 0, PreparedRowBytes(format, k));
  float chunk[kActivationBlock];
  for (uint32_t begin = 0; begin < k; begin += kActivationBlock) {
    const uint32_t count = std::min(kActivationBlock, k - begin);
    for (uint32_t i = 0; i < count; ++i) {
      chunk[i] = value(begin + i);
    }
    PrepareChunk(format, chunk, k, begin, count, out);
  }
}

bool ValidRow(RowFormat format, uint32_t k) {
  return k > 0 && (format != RowFormat::kInt8 || k % kActivationBlock == 0);
}

}  // namespace

int NormRows(const NormRowsArgs& args, WorkRange rows, Exec*) {
  if (!ValidRow(args.format, args.k)) {
    return kInvalidArgument;
  }
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    const float* x = args.x + args.x_stride * row;
    float squares = 0.0F;
    for (uint32_t i = 0; i < args.k; ++i) {
      squares += x[i] * x[i];
    }
    const float factor = 1.0F / std::sqrt(squares / static_cast<float>(args.k) + args.eps);
    PrepareValues(args.format,
                  args.k,
                  static_cast<uint8_t*>(args.out) + args.out_stride_bytes * row,
                  [&](uint32_t i) {
                    return args.weight == nullptr ? x[i] * factor : x[i] * factor * args.weight[i];
                  });
  }
  return kOk;
}

int PrepareRows(const PrepareRowsArgs& args, WorkRange rows, Exec*) {
  if (!ValidRow(args.format, args.k)) {
    return kInvalidArgument;
  }
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    const float* x = args.x + args.x_stride * row;
    PrepareValues(args.format,
                  args.k,
                  static_cast<uint8_t*>(args.out) + args.out_stride_bytes * row,
                  [&](uint32_t i) { return x[i]; });
  }
  return kOk;
}

int SwiGluRows(const SwiGluRowsArgs& args, WorkRange rows, Exec*) {
  if (!ValidRow(args.format, args.k)) {
    return kInvalidArgument;
  }
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    const float* gate = args.gate + args.stride * row;
    const float* up = args.up + args.stride * row;
    PrepareValues(args.format,
                  args.k,
                  static_cast<uint8_t*>(args.out) + args.out_stride_bytes * row,
                  [&](uint32_t i) { return gate[i] / (1.0F + std::exp(-gate[i])) * up[i]; });
  }
  return kOk;
}

int EmbedRows(const EmbedRowsArgs& args, WorkRange rows, Exec*) {
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    const int32_t id = args.ids[row];
    if (id < 0 || static_cast<uint32_t>(id) >= args.table_rows) {
      return kInvalidArgument;
    }
    const uint8_t* source = static_cast<const uint8_t*>(args.table) +
                            RowBytes(args.type, args.k) * static_cast<uint32_t>(id);
    const int code = DequantizeRow(args.type, source, args.k, args.out + args.out_stride * row);
    if (code != kOk) {
      return code;
    }
  }
  return kOk;
}

}  // namespace spindle::kernels::reference
