#include "model/config_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/status_macros.h"
#include "model/tensor_names.h"

namespace spindle::model {
namespace {

// Sizes beyond these are damage, not models; they also keep all products below 2^63.
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxWidth = 1U << 20;
constexpr uint32_t kMaxHeads = 4096;
constexpr uint32_t kMaxContext = 1U << 24;
// What the attention kernels cover (kernels/api/attention.h).
constexpr uint32_t kMinHeadDim = 64;
constexpr uint32_t kMaxHeadDim = 256;
constexpr uint32_t kHeadDimStep = 16;
constexpr uint32_t kMaxGroup = 16;

absl::Status CheckRange(const char* name, uint64_t value, uint64_t least, uint64_t most) {
  if (value < least || value > most) {
    return absl::DataLossError(std::string("model configuration: ") + name + " is " +
                               std::to_string(value) + ", must be in " + std::to_string(least) +
                               ".." + std::to_string(most));
  }
  return absl::OkStatus();
}

absl::Status CheckPositive(const char* name, float value) {
  if (!(value > 0.0F) || !std::isfinite(value)) {
    return absl::DataLossError(std::string("model configuration: ") + name +
                               " must be a positive number");
  }
  return absl::OkStatus();
}

absl::Status CheckConfig(const ModelConfig& config) {
  SPINDLE_RETURN_IF_ERROR(CheckRange("number of layers", config.num_layers, 1, kMaxLayers));
  SPINDLE_RETURN_IF_ERROR(CheckRange("hidden size", config.hidden_size, 1, kMaxWidth));
  SPINDLE_RETURN_IF_ERROR(CheckRange("feed-forward size", config.ffn_size, 1, kMaxWidth));
  SPINDLE_RETURN_IF_ERROR(CheckRange("attention heads", config.num_q_heads, 1, kMaxHeads));
  SPINDLE_RETURN_IF_ERROR(
      CheckRange("key-value heads", config.num_kv_heads, 1, config.num_q_heads));
  SPINDLE_RETURN_IF_ERROR(CheckRange("context length", config.trained_context, 1, kMaxContext));
  SPINDLE_RETURN_IF_ERROR(CheckPositive("norm epsilon", config.norm_eps));
  SPINDLE_RETURN_IF_ERROR(CheckPositive("RoPE base", config.rope.base));
  SPINDLE_RETURN_IF_ERROR(CheckPositive("RoPE factor", config.rope.factor));
  if (config.num_q_heads % config.num_kv_heads != 0) {
    return absl::DataLossError("model configuration: " + std::to_string(config.num_q_heads) +
                               " attention heads are not a multiple of " +
                               std::to_string(config.num_kv_heads) + " key-value heads");
  }
  if (config.head_dim < kMinHeadDim || config.head_dim > kMaxHeadDim ||
      config.head_dim % kHeadDimStep != 0) {
    return absl::UnimplementedError("head dimension " + std::to_string(config.head_dim) +
                                    " (supported: multiples of 16 in 64..256)");
  }
  if (config.num_q_heads / config.num_kv_heads > kMaxGroup) {
    return absl::UnimplementedError("more than 16 attention heads per key-value head");
  }
  if (config.rope.dim == 0 || config.rope.dim % 2 != 0 || config.rope.dim > config.head_dim) {
    return absl::DataLossError("model configuration: RoPE dimension " +
                               std::to_string(config.rope.dim) +
                               " must be even and at most the head dimension");
  }
  return absl::OkStatus();
}

// Type that holds most bytes of the layers' matrices.
std::string MostCommonType(const formats::ModelFile& file) {
  std::map<DType, uint64_t> bytes;
  for (const formats::TensorInfo& tensor : file.tensors()) {
    if (tensor.shape.size() == 2) {
      bytes[tensor.type] += tensor.bytes.size();
    }
  }
  std::string name;
  uint64_t most = 0;
  for (const auto& [type, size] : bytes) {
    if (size > most) {
      most = size;
      name = std::string(Describe(type).name);
    }
  }
  return name;
}

absl::Status PositiveOption(const char* flag, std::optional<float> value) {
  if (value && (!(*value > 0.0F) || !std::isfinite(*value))) {
    return absl::InvalidArgumentError(std::string(flag) + " must be greater than 0");
  }
  return absl::OkStatus();
}

absl::Status ApplyScaling(const RopeOverrides& overrides, RopeConfig* rope) {
  if (!overrides.scaling) {
    return absl::OkStatus();
  }
  RopeScaling scaling = RopeScaling::kNone;
  if (*overrides.scaling == "linear") {
    scaling = RopeScaling::kLinear;
  } else if (*overrides.scaling == "yarn") {
    scaling = RopeScaling::kYarn;
  } else if (*overrides.scaling != "none") {
    return absl::InvalidArgumentError("--rope-scaling must be none, linear or yarn, got '" +
                                      *overrides.scaling + "'");
  }
  if (scaling != rope->scaling) {
    rope->attention_factor = 0.0F;  // belongs to the scaling of the file
    if (rope->scaling == RopeScaling::kLlama3) {
      rope->factor = 1.0F;
    }
  }
  rope->scaling = scaling;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadConfig(const formats::ModelFile& file) {
  const bool gguf = file.kind() == formats::FileKind::kGguf;
  const formats::TensorInfo* embedding = file.Find(TensorName(file.kind(), Role::kEmbedding, 0));
  if (embedding == nullptr || embedding->shape.size() != 2) {
    return absl::DataLossError("tensor '" + TensorName(file.kind(), Role::kEmbedding, 0) +
                               "' is missing or not a matrix");
  }
  ModelConfig config;
  if (gguf) {
    SPINDLE_ASSIGN_OR_RETURN(config, ReadGgufConfig(file));
    config.vocab_size = static_cast<uint32_t>(
        std::min<uint64_t>(embedding->shape[0], std::numeric_limits<uint32_t>::max()));
  } else {
    const std::optional<std::string> json = file.SideFile("config.json");
    if (!json) {
      return absl::NotFoundError("config.json is missing or unreadable");
    }
    SPINDLE_ASSIGN_OR_RETURN(config, ReadHuggingFaceConfig(file, *json));
  }
  SPINDLE_RETURN_IF_ERROR(CheckRange("vocabulary size", config.vocab_size, 1, 1U << 28));
  config.quantization = MostCommonType(file);
  config.qkv_bias = config.architecture == "qwen2" ||
                    file.Find(TensorName(file.kind(), Role::kQBias, 0)) != nullptr;
  config.qk_norm = config.architecture == "qwen3";
  if (config.rope.scaling == RopeScaling::kNone) {
    config.rope.factor = 1.0F;
  }
  SPINDLE_RETURN_IF_ERROR(CheckConfig(config));
  return config;
}

uint32_t ContextLimit(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  double limit = config.trained_context;
  if (rope.scaling == RopeScaling::kLinear) {
    limit *= rope.factor;
  } else if (rope.scaling == RopeScaling::kYarn) {
    limit = std::max(limit, static_cast<double>(rope.original_context) * rope.factor);
  }
  return static_cast<uint32_t>(std::clamp(limit, 1.0, static_cast<double>(kMaxContext)));
}

absl::Status ApplyOptions(const ModelOptions& options, ModelConfig* config) {
  const RopeOverrides& overrides = options.rope;
  SPINDLE_RETURN_IF_ERROR(PositiveOption("--rope-scale", overrides.scale));
  SPINDLE_RETURN_IF_ERROR(PositiveOption("--rope-freq-scale", overrides.freq_scale));
  SPINDLE_RETURN_IF_ERROR(PositiveOption("--rope-freq-base", overrides.freq_base));
  if (overrides.scale && overrides.freq_scale) {
    return absl::InvalidArgumentError("give --rope-scale or --rope-freq-scale, not both");
  }
  if (overrides.yarn_orig_ctx &&
      (*overrides.yarn_orig_ctx == 0 || *overrides.yarn_orig_ctx > kMaxContext)) {
    return absl::InvalidArgumentError("--yarn-orig-ctx must be in 1.." +
                                      std::to_string(kMaxContext));
  }
  RopeConfig* rope = &config->rope;
  SPINDLE_RETURN_IF_ERROR(ApplyScaling(overrides, rope));
  if (overrides.scale || overrides.freq_scale) {
    if (rope->scaling == RopeScaling::kLlama3) {
      return absl::InvalidArgumentError(
          "--rope-scale: the model has Llama-3 scaling; choose --rope-scaling none, linear or yarn "
          "too");
    }
    if (rope->scaling == RopeScaling::kNone && !overrides.scaling) {
      rope->scaling = RopeScaling::kLinear;
    }
    rope->factor = overrides.scale ? *overrides.scale : 1.0F / *overrides.freq_scale;
    rope->attention_factor = 0.0F;
  }
  if (rope->scaling == RopeScaling::kNone) {
    rope->factor = 1.0F;
  }
  rope->base = overrides.freq_base.value_or(rope->base);
  rope->original_context = overrides.yarn_orig_ctx.value_or(rope->original_context);
  if (rope->original_context == 0) {
    rope->original_context = config->trained_context;
  }
  const uint32_t limit = ContextLimit(*config);
  config->max_model_len = options.max_model_len.value_or(limit);
  if (config->max_model_len == 0 || config->max_model_len > limit) {
    return absl::InvalidArgumentError(
        "--max-model-len must be in 1.." + std::to_string(limit) +
        " for this model (stretch it with --rope-scaling yarn --rope-scale N), got " +
        std::to_string(config->max_model_len));
  }
  return absl::OkStatus();
}

}  // namespace spindle::model
