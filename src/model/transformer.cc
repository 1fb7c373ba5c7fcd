#include "model/transformer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/status_macros.h"

namespace spindle::model {
namespace {

using kernels::Exec;
using kernels::RowFormat;
using kernels::WorkRange;

// Rows are padded to whole cache lines.
constexpr size_t kFloatsPerLine = 16;
// Rows of gate and up that exist at a time: they and their operands stay in the second-level cache,
// and weights are still read only once per 512 rows.
constexpr uint32_t kFfnBlockRows = 512;
// Some 2 µs of a row kernel, whose operands come from other workers' caches: twice the cost of
// sharing the work.
constexpr uint32_t kElementsPerPiece = 1U << 11;
// A product's piece reads at least this many weight bytes (times rows); about 2 µs.
constexpr uint64_t kWeightBytesPerPiece = 32 << 10;
// Pieces per worker, so that a late worker does not hold up the others.
constexpr uint32_t kPiecesPerWorker = 6;
constexpr size_t kMaxProducts = 3;

size_t PaddedStride(size_t elements) {
  return (elements + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
}

uint32_t CeilDiv(uint64_t a, uint64_t b) {
  return static_cast<uint32_t>((a + b - 1) / b);
}

size_t QuerySize(const ModelConfig& config) {
  return size_t{config.num_q_heads} * config.head_dim;
}

struct BufferShape {
  size_t rows;
  size_t stride;  // floats

  [[nodiscard]] size_t bytes() const { return rows * stride * sizeof(float); }
};

// Of x, q, k, v, attention, gate, up and logits.
std::array<BufferShape, 8> BufferShapes(const ModelConfig& config,
                                        uint32_t max_rows,
                                        uint32_t max_logit_rows) {
  const size_t q_stride = PaddedStride(QuerySize(config));
  const size_t kv_stride = PaddedStride(size_t{config.num_kv_heads} * config.head_dim);
  const size_t ffn_stride = PaddedStride(config.ffn_size);
  const uint32_t ffn_rows = std::min(max_rows, kFfnBlockRows);
  return {{{max_rows, PaddedStride(config.hidden_size)},
           {max_rows, q_stride},
           {max_rows, kv_stride},
           {max_rows, kv_stride},
           {max_rows, q_stride},
           {ffn_rows, ffn_stride},
           {ffn_rows, ffn_stride},
           {max_logit_rows, config.vocab_size}}};
}

// Prepared rows of one format, for the widest product.
size_t OperandBytes(const ModelConfig& config,
                    RowFormat format,
                    uint32_t max_rows,
                    uint32_t max_logit_rows) {
  const auto bytes_of = [format](size_t k) { return kernels::PreparedRowBytes(format, k); };
  return std::max({max_rows * bytes_of(std::max<size_t>(config.hidden_size, QuerySize(config))),
                   std::min(max_rows, kFfnBlockRows) * bytes_of(config.ffn_size),
                   max_logit_rows * bytes_of(config.hidden_size)});
}

}  // namespace

uint64_t ActivationBytes(const ModelConfig& config, uint32_t max_rows, uint32_t max_logit_rows) {
  uint64_t bytes = 0;
  for (const BufferShape& shape : BufferShapes(config, max_rows, max_logit_rows)) {
    bytes += shape.bytes();
  }
  for (size_t format = 0; format < kernels::kNumRowFormats; ++format) {
    bytes += OperandBytes(config, static_cast<RowFormat>(format), max_rows, max_logit_rows);
  }
  return bytes;
}

Transformer::Transformer(const ModelConfig& config,
                         const Weights& weights,
                         const tensor::RopeTable& rope,
                         const kernels::KernelTable& kernels,
                         platform::ComputePool& pool)
    : config_(config), weights_(weights), kernels_(kernels), pool_(pool) {
  specs_.reserve(config.num_layers);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    tensor::AttentionSpec spec;
    spec.num_q_heads = config.num_q_heads;
    spec.num_kv_heads = config.num_kv_heads;
    spec.head_dim = config.head_dim;
    spec.scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim));
    spec.window = config.layer_window[layer];
    spec.pairing = config.rope.pairing;
    spec.rope = &rope;
    spec.q_norm = weights.layers[layer].q_norm;
    spec.k_norm = weights.layers[layer].k_norm;
    spec.norm_eps = config.norm_eps;
    specs_.push_back(spec);
  }
}

absl::Status Transformer::Reserve(uint32_t max_rows, uint32_t max_logit_rows) {
  const std::array<Rows*, 8> buffers = {&x_, &q_, &k_, &v_, &attention_, &gate_, &up_, &logits_};
  const std::array<BufferShape, 8> shapes = BufferShapes(config_, max_rows, max_logit_rows);
  for (size_t i = 0; i < buffers.size(); ++i) {
    buffers[i]->stride = shapes[i].stride;
    SPINDLE_ASSIGN_OR_RETURN(buffers[i]->buffer,
                             platform::AlignedBuffer::Allocate(shapes[i].bytes()));
  }
  for (size_t format = 0; format < kernels::kNumRowFormats; ++format) {
    SPINDLE_ASSIGN_OR_RETURN(
        operands_[format],
        platform::AlignedBuffer::Allocate(
            OperandBytes(config_, static_cast<RowFormat>(format), max_rows, max_logit_rows)));
  }
  max_rows_ = max_rows;
  max_logit_rows_ = max_logit_rows;
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> Transformer::Forward(const StepInput& input,
                                                            sparse::AttentionRuntime& runtime) {
  SPINDLE_RETURN_IF_ERROR(CheckInput(input));
  auto num_rows = static_cast<uint32_t>(input.tokens.size());
  const auto num_logit_rows = static_cast<uint32_t>(input.logit_rows.size());
  SPINDLE_RETURN_IF_ERROR(runtime.BeginStep(input.sequences));
  SPINDLE_RETURN_IF_ERROR(Embed(input.tokens));
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    SPINDLE_RETURN_IF_ERROR(Attend(layer, num_rows, runtime));
    if (layer + 1 == config_.num_layers) {  // from here on only the rows with logits matter
      Compact(input.logit_rows);
      num_rows = num_logit_rows;
    }
    SPINDLE_RETURN_IF_ERROR(ProjectAttention(layer, num_rows));
    SPINDLE_RETURN_IF_ERROR(FeedForward(layer, num_rows));
  }
  SPINDLE_RETURN_IF_ERROR(Head(num_rows));
  return std::span<const float>(logits_.data(), size_t{num_rows} * config_.vocab_size);
}

absl::Status Transformer::CheckInput(const StepInput& input) const {
  if (input.tokens.size() > max_rows_ || input.logit_rows.size() > max_logit_rows_) {
    return absl::InvalidArgumentError("a step of " + std::to_string(input.tokens.size()) +
                                      " rows and " + std::to_string(input.logit_rows.size()) +
                                      " logit rows exceeds what was reserved");
  }
  for (const TokenId token : input.tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= config_.vocab_size) {
      return absl::InvalidArgumentError("token id " + std::to_string(token) + " must be in 0.." +
                                        std::to_string(config_.vocab_size - 1));
    }
  }
  for (const sparse::SequenceRows& rows : input.sequences) {
    if (uint64_t{rows.first_position} + rows.num_rows > config_.max_model_len) {
      return absl::InvalidArgumentError("positions must be below " +
                                        std::to_string(config_.max_model_len));
    }
  }
  uint32_t least = 0;
  for (const uint32_t row : input.logit_rows) {
    if (row < least || row >= input.tokens.size()) {
      return absl::InvalidArgumentError("logit rows must be ascending and inside the step");
    }
    least = row + 1;
  }
  return absl::OkStatus();
}

absl::Status Transformer::Embed(std::span<const TokenId> tokens) {
  const kernels::EmbedRowsArgs args{.table = weights_.embedding.rows,
                                    .type = weights_.embedding.type,
                                    .table_rows = config_.vocab_size,
                                    .k = config_.hidden_size,
                                    .ids = tokens.data(),
                                    .num_rows = static_cast<uint32_t>(tokens.size()),
                                    .out = x_.data(),
                                    .out_stride = x_.stride};
  return pool_.Run(
      args.num_rows, RowGrain(args.k, RowFormat::kF32), [&](WorkRange rows, Exec* exec) {
        return kernels_.embed_rows(args, rows, exec);
      });
}

absl::Status Transformer::Attend(uint32_t layer,
                                 uint32_t num_rows,
                                 sparse::AttentionRuntime& runtime) {
  const LayerWeights& w = weights_.layers[layer];
  const std::initializer_list<Product> qkv = {{w.q, q_.data(), q_.stride, w.q_bias},
                                              {w.k, k_.data(), k_.stride, w.k_bias},
                                              {w.v, v_.data(), v_.stride, w.v_bias}};
  SPINDLE_RETURN_IF_ERROR(NormFor(qkv, w.attention_norm, x_.data(), num_rows));
  ExpectNext(w.attention_output, w.attention_output);
  SPINDLE_RETURN_IF_ERROR(Multiply(qkv, num_rows, /*accumulate=*/false));
  return runtime.Attend({.layer = LayerIdx(static_cast<uint16_t>(layer)),
                         .spec = &specs_[layer],
                         .q = q_.data(),
                         .k = k_.data(),
                         .v = v_.data(),
                         .q_stride = q_.stride,
                         .k_stride = k_.stride,
                         .v_stride = v_.stride,
                         .out = attention_.data(),
                         .out_stride = attention_.stride});
}

absl::Status Transformer::ProjectAttention(uint32_t layer, uint32_t num_rows) {
  const LayerWeights& w = weights_.layers[layer];
  const kernels::PackedMatrix& output = w.attention_output;
  const kernels::PrepareRowsArgs args{
      .x = attention_.data(),
      .x_stride = attention_.stride,
      .k = output.num_inputs,
      .num_rows = num_rows,
      .format = output.row_format,
      .out = operands_[static_cast<size_t>(output.row_format)].data(),
      .out_stride_bytes = kernels::PreparedRowBytes(output.row_format, output.num_inputs)};
  SPINDLE_RETURN_IF_ERROR(
      pool_.Run(num_rows, RowGrain(args.k, args.format), [&](WorkRange rows, Exec* exec) {
        return kernels_.prepare_rows(args, rows, exec);
      }));
  ExpectNext(w.gate, w.up);
  return Multiply({{output, x_.data(), x_.stride, nullptr}}, num_rows, /*accumulate=*/true);
}

absl::Status Transformer::FeedForward(uint32_t layer, uint32_t num_rows) {
  const LayerWeights& w = weights_.layers[layer];
  for (uint32_t begin = 0; begin < num_rows; begin += kFfnBlockRows) {
    const uint32_t block_rows = std::min(kFfnBlockRows, num_rows - begin);
    const std::initializer_list<Product> gate_up = {{w.gate, gate_.data(), gate_.stride, nullptr},
                                                    {w.up, up_.data(), up_.stride, nullptr}};
    SPINDLE_RETURN_IF_ERROR(NormFor(gate_up, w.ffn_norm, x_.row(begin), block_rows));
    ExpectNext(w.down, w.down);
    SPINDLE_RETURN_IF_ERROR(Multiply(gate_up, block_rows, /*accumulate=*/false));
    const kernels::SwiGluRowsArgs args{
        .gate = gate_.data(),
        .up = up_.data(),
        .stride = gate_.stride,
        .k = config_.ffn_size,
        .num_rows = block_rows,
        .format = w.down.row_format,
        .out = operands_[static_cast<size_t>(w.down.row_format)].data(),
        .out_stride_bytes = kernels::PreparedRowBytes(w.down.row_format, config_.ffn_size)};
    SPINDLE_RETURN_IF_ERROR(
        pool_.Run(block_rows, RowGrain(args.k, args.format), [&](WorkRange rows, Exec* exec) {
          return kernels_.swiglu_rows(args, rows, exec);
        }));
    if (layer + 1 < config_.num_layers) {
      const LayerWeights& next = weights_.layers[layer + 1];
      ExpectNext(next.q, next.v);
    } else {
      ExpectNext(weights_.head, weights_.head);
    }
    SPINDLE_RETURN_IF_ERROR(
        Multiply({{w.down, x_.row(begin), x_.stride, nullptr}}, block_rows, /*accumulate=*/true));
  }
  return absl::OkStatus();
}

absl::Status Transformer::Head(uint32_t num_rows) {
  const std::initializer_list<Product> head = {
      {weights_.head, logits_.data(), logits_.stride, nullptr}};
  SPINDLE_RETURN_IF_ERROR(NormFor(head, weights_.final_norm, x_.data(), num_rows));
  ExpectNext(weights_.layers[0].q, weights_.layers[0].v);
  return Multiply(head, num_rows, /*accumulate=*/false);
}

void Transformer::Compact(std::span<const uint32_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != i) {
      std::memcpy(x_.row(i), x_.row(rows[i]), x_.stride * sizeof(float));
      std::memcpy(attention_.row(i), attention_.row(rows[i]), attention_.stride * sizeof(float));
    }
  }
}

absl::Status Transformer::NormFor(std::initializer_list<Product> products,
                                  const float* norm,
                                  const float* x,
                                  uint32_t num_rows) {
  for (size_t format = 0; format < kernels::kNumRowFormats; ++format) {
    const auto wanted = static_cast<RowFormat>(format);
    const bool asked = std::any_of(products.begin(), products.end(), [wanted](const Product& p) {
      return p.weights.row_format == wanted;
    });
    if (!asked) {
      continue;
    }
    const kernels::NormRowsArgs args{
        .x = x,
        .x_stride = x_.stride,
        .weight = norm,
        .eps = config_.norm_eps,
        .k = config_.hidden_size,
        .num_rows = num_rows,
        .format = wanted,
        .out = operands_[format].data(),
        .out_stride_bytes = kernels::PreparedRowBytes(wanted, config_.hidden_size)};
    SPINDLE_RETURN_IF_ERROR(
        pool_.Run(num_rows, RowGrain(args.k, args.format), [&](WorkRange rows, Exec* exec) {
          return kernels_.norm_rows(args, rows, exec);
        }));
  }
  return absl::OkStatus();
}

absl::Status Transformer::Multiply(std::initializer_list<Product> products,
                                   uint32_t num_rows,
                                   bool accumulate) {
  if (num_rows == 0) {
    return absl::OkStatus();
  }
  std::array<kernels::GemmArgs, kMaxProducts> parts;
  uint32_t num_parts = 0;
  uint64_t bytes = 0;
  for (const Product& product : products) {
    const kernels::PackedMatrix& weights = product.weights;
    bytes += weights.bytes;
    parts[num_parts++] = {
        .weights = &weights,
        .x = operands_[static_cast<size_t>(weights.row_format)].data(),
        .x_stride_bytes = kernels::PreparedRowBytes(weights.row_format, weights.num_inputs),
        .y = product.y,
        .y_stride = product.y_stride,
        .bias = product.bias,
        .num_rows = num_rows,
        .accumulate = accumulate};
  }
  const kernels::GemmGroup group{parts.data(), num_parts};
  const uint32_t units = kernels::GemmUnits(group);
  const uint64_t bytes_per_unit = std::max<uint64_t>(bytes / units, 1) * num_rows;
  const uint32_t grain = std::max(CeilDiv(units, uint64_t{pool_.num_workers()} * kPiecesPerWorker),
                                  CeilDiv(kWeightBytesPerPiece, bytes_per_unit));
  return pool_.Run(
      units, grain, [&](WorkRange range, Exec* exec) { return kernels_.gemm(group, range, exec); });
}

void Transformer::ExpectNext(const kernels::PackedMatrix& first,
                             const kernels::PackedMatrix& last) {
  const auto* begin = static_cast<const uint8_t*>(first.data);
  const auto* end = static_cast<const uint8_t*>(last.data) + last.bytes;
  pool_.Expect(begin, static_cast<size_t>(end - begin));
}

uint32_t Transformer::RowGrain(uint32_t k, RowFormat format) {
  const uint32_t rows = CeilDiv(kElementsPerPiece, k);
  if (format != RowFormat::kBf16Columns) {
    return rows;
  }
  return CeilDiv(rows, kernels::kColumnGroupRows) * kernels::kColumnGroupRows;
}

}  // namespace spindle::model
