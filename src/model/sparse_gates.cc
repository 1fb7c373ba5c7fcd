#include "model/sparse_gates.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "formats/tensor_file.h"
#include "kernels/api/select.h"
#include "kernels/codes.h"
#include "kernels/registry.h"
#include "model/tensor_names.h"
#include "platform/compute_pool.h"

namespace spindle::model {
namespace {

using formats::TensorFile;
using formats::TensorInfo;
using kernels::RopePairing;
using sparse::SeerGates;

constexpr std::string_view kFormat = "spindle-gates-1";
constexpr uint32_t kWidthStep = 16;

// Elements as fp32, whatever type and address they have.
absl::StatusOr<std::vector<float>> ReadFloats(const TensorInfo& tensor) {
  const std::vector<uint8_t> aligned(tensor.bytes.begin(), tensor.bytes.end());
  uint64_t count = 1;
  for (const uint64_t extent : tensor.shape) {
    count *= extent;
  }
  std::vector<float> values(count);
  SPINDLE_RETURN_IF_ERROR(platform::ToStatus(kernels::BestKernels()->dequantize_row(
      tensor.type, aligned.data(), static_cast<uint32_t>(count), values.data())));
  return values;
}

class Reader {
 public:
  Reader(const std::string& path, const TensorFile& file, const ModelConfig& config)
      : path_(path), file_(file), config_(config) {
    gates_.num_kv_heads = config.num_kv_heads;
    gates_.group = config.num_q_heads / config.num_kv_heads;
    gates_.head_dim = config.head_dim;
  }

  absl::StatusOr<SeerGates> Read() {
    SPINDLE_RETURN_IF_ERROR(ReadSettings());
    for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
      SPINDLE_RETURN_IF_ERROR(ReadLayer(layer));
    }
    const size_t expected = size_t{config_.num_layers} * (qk_norm_ ? 4 : 2);
    if (file_.num_tensors() != expected) {
      return Error("it has " + std::to_string(file_.num_tensors()) + " tensors, gates of " +
                   std::to_string(config_.num_layers) + " layers are " + std::to_string(expected));
    }
    gates_.digest = digest_.Finish();
    return std::move(gates_);
  }

 private:
  [[nodiscard]] absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError("gates " + path_ + ": " + what);
  }

  [[nodiscard]] absl::StatusOr<std::string> Text(const std::string& key) const {
    const std::optional<std::string_view> text = file_.Metadata(key);
    if (!text.has_value()) {
      return Error("metadata '" + key + "' is missing");
    }
    return std::string(*text);
  }

  [[nodiscard]] absl::StatusOr<bool> Flag(const std::string& key) const {
    SPINDLE_ASSIGN_OR_RETURN(const std::string text, Text(key));
    if (text != "true" && text != "false") {
      return Error("metadata '" + key + "' must be true or false, got '" + text + "'");
    }
    return text == "true";
  }

  absl::Status ReadSettings() {
    SPINDLE_ASSIGN_OR_RETURN(const std::string format, Text("format"));
    if (format != kFormat) {
      return Error("metadata 'format' must be " + std::string(kFormat) + ", got '" + format + "'");
    }
    SPINDLE_ASSIGN_OR_RETURN(const std::string block, Text("seerattn_gate_block_size"));
    if (block != std::to_string(kStripeTokens)) {
      return Error("metadata 'seerattn_gate_block_size' must be 64, got '" + block + "'");
    }
    SPINDLE_ASSIGN_OR_RETURN(const std::string width, Text("seerattn_gate_hidden_size"));
    if (!absl::SimpleAtoi(width, &gates_.width) || gates_.width == 0 ||
        gates_.width % kWidthStep != 0 || gates_.width > kernels::kMaxIndexDim) {
      return Error("metadata 'seerattn_gate_hidden_size' must be a multiple of 16 in [16, " +
                   std::to_string(kernels::kMaxIndexDim) + "], got '" + width + "'");
    }
    SPINDLE_ASSIGN_OR_RETURN(qk_norm_, Flag("seerattn_use_qk_norm"));
    SPINDLE_ASSIGN_OR_RETURN(const bool use_rope, Flag("seerattn_use_rope"));
    if (use_rope) {
      SPINDLE_ASSIGN_OR_RETURN(const std::string theta, Text("rope_theta"));
      if (!absl::SimpleAtof(theta, &gates_.rope_base) || !(gates_.rope_base >= 1.0F) ||
          !std::isfinite(gates_.rope_base)) {
        return Error("metadata 'rope_theta' must be a number of at least 1, got '" + theta + "'");
      }
    }
    digest_.Field(kFormat).Number(gates_.width).Number(std::bit_cast<uint32_t>(gates_.rope_base));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> Take(uint32_t layer,
                                          const std::string& part,
                                          const std::vector<uint64_t>& shape) {
    const std::string name =
        "model.layers." + std::to_string(layer) + ".self_attn.attn_gate." + part + ".weight";
    const TensorInfo* const tensor = file_.Find(name);
    if (tensor == nullptr) {
      return Error("tensor '" + name + "' is missing");
    }
    if (tensor->shape != shape) {
      return Error("tensor '" + name + "' has shape " + ShapeText(tensor->shape) +
                   ", for this model it must be " + ShapeText(shape));
    }
    digest_.Field(name).Number(static_cast<uint64_t>(tensor->type)).Bytes(tensor->bytes);
    SPINDLE_ASSIGN_OR_RETURN(std::vector<float> values, ReadFloats(*tensor));
    for (const float value : values) {
      if (!std::isfinite(value)) {
        return Error("tensor '" + name + "' has an element that is no finite number");
      }
    }
    return values;
  }

  // Rows [head_dim][width] of one head or third, in the file's order of channels, to the model's.
  [[nodiscard]] uint32_t ChannelInFile(uint32_t channel) const {
    const uint32_t rotated = config_.rope.dim;
    if (config_.rope.pairing == RopePairing::kHalfSplit || channel >= rotated) {
      return channel;
    }
    return channel / 2 + (channel % 2 == 0 ? 0 : rotated / 2);
  }

  [[nodiscard]] std::vector<uint16_t> InModelOrder(const std::vector<float>& weights) const {
    const uint32_t d = gates_.head_dim;
    const uint32_t width = gates_.width;
    std::vector<uint16_t> out(weights.size());
    for (size_t row = 0; row < weights.size() / width; ++row) {
      const size_t channel = row % d;
      const size_t from = row - channel + ChannelInFile(static_cast<uint32_t>(channel));
      for (uint32_t i = 0; i < width; ++i) {
        out[row * width + i] = kernels::FloatToBf16(weights[from * width + i]);
      }
    }
    return out;
  }

  absl::Status ReadLayer(uint32_t layer) {
    const uint64_t heads = gates_.num_kv_heads;
    const uint64_t d = gates_.head_dim;
    const uint64_t width = gates_.width;
    SeerGates::Layer& out = gates_.layers.emplace_back();
    SPINDLE_ASSIGN_OR_RETURN(const std::vector<float> q,
                             Take(layer, "attngate_linear_q", {heads, gates_.group, d, width}));
    SPINDLE_ASSIGN_OR_RETURN(const std::vector<float> k,
                             Take(layer, "attngate_linear_k", {heads, 3 * d, width}));
    out.q = InModelOrder(q);
    out.k = InModelOrder(k);
    if (qk_norm_) {
      SPINDLE_ASSIGN_OR_RETURN(out.q_norm, Take(layer, "attngate_qnorm", {width}));
      SPINDLE_ASSIGN_OR_RETURN(out.k_norm, Take(layer, "attngate_knorm", {width}));
    }
    return absl::OkStatus();
  }

  const std::string& path_;
  const TensorFile& file_;
  const ModelConfig& config_;
  bool qk_norm_ = false;
  Sha256 digest_;
  SeerGates gates_;
};

}  // namespace

absl::StatusOr<Digest> ModelDigest(const formats::ModelFile& file) {
  const std::string name = TensorName(file.kind(), Role::kFinalNorm, 0);
  const TensorInfo* const tensor = file.Find(name);
  if (tensor == nullptr) {
    return absl::DataLossError("tensor '" + name + "' is missing");
  }
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<float> weights, ReadFloats(*tensor));
  const auto* const bytes = reinterpret_cast<const uint8_t*>(weights.data());
  return Sha256().Bytes({bytes, weights.size() * sizeof(float)}).Finish();
}

std::string FindGatesBeside(const std::string& model_path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path path(model_path);
  if (fs::is_directory(path, error)) {
    path /= formats::kGatesFileName;
  } else if (path.extension() == ".gguf") {
    path.replace_extension(formats::kGatesFileName);
  } else {
    path.replace_filename(formats::kGatesFileName);
  }
  return fs::exists(path, error) ? path.string() : "";
}

absl::StatusOr<SeerGates> LoadSeerGates(const std::string& path,
                                        const formats::ModelFile& file,
                                        const ModelConfig& config) {
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<TensorFile> gates, TensorFile::Open(path));
  const std::string_view wanted = gates->Metadata("model_digest").value_or("");
  SPINDLE_ASSIGN_OR_RETURN(const Digest digest, ModelDigest(file));
  if (!wanted.empty() && wanted != ToHex(digest)) {
    return absl::InvalidArgumentError(
        "gates " + path + ": they were made for another model, " +
        std::string(gates->Metadata("base_model").value_or("which they do not name")));
  }
  return Reader(path, *gates, config).Read();
}

}  // namespace spindle::model
