#include <cmath>
#include <string>

#include "base/status_macros.h"
#include "model/config_reader.h"
#include "model/tensor_names.h"

namespace spindle::model {
namespace {

// Typed access to "<architecture>.<key>" with errors that name the key.
class Keys {
 public:
  Keys(const formats::ModelFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  [[nodiscard]] bool Has(const std::string& key) const {
    return file_.Meta(prefix_ + key) != nullptr;
  }

  absl::StatusOr<uint32_t> Uint(const std::string& key) const {
    const std::optional<uint64_t> value = Scalar(key);
    if (!value || *value > UINT32_MAX) {
      return absl::DataLossError("metadata key '" + prefix_ + key +
                                 "' is missing or not one number");
    }
    return static_cast<uint32_t>(*value);
  }

  absl::StatusOr<uint32_t> UintOr(const std::string& key, uint32_t fallback) const {
    return Has(key) ? Uint(key) : fallback;
  }

  absl::StatusOr<float> FloatOr(const std::string& key, float fallback) const {
    if (!Has(key)) {
      return fallback;
    }
    const std::optional<double> value = file_.MetaFloat(prefix_ + key);
    if (!value || !std::isfinite(*value)) {
      return absl::DataLossError("metadata key '" + prefix_ + key + "' is not a number");
    }
    return static_cast<float>(*value);
  }

  [[nodiscard]] std::string TextOr(const std::string& key, const std::string& fallback) const {
    return std::string(file_.MetaString(prefix_ + key).value_or(fallback));
  }

 private:
  // A number, or an array (one element per layer) whose elements are all the same.
  std::optional<uint64_t> Scalar(const std::string& key) const {
    const formats::MetaValue* value = file_.Meta(prefix_ + key);
    const auto* array = value == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(value);
    if (array == nullptr) {
      return file_.MetaUint(prefix_ + key);
    }
    for (const int64_t element : *array) {
      if (element < 0 || element != array->front()) {
        return std::nullopt;
      }
    }
    return array->empty() ? std::nullopt : std::optional(static_cast<uint64_t>(array->front()));
  }

  const formats::ModelFile& file_;
  std::string prefix_;
};

absl::Status ReadScaling(const Keys& keys, RopeConfig* rope) {
  SPINDLE_ASSIGN_OR_RETURN(rope->factor, keys.FloatOr("rope.scaling.factor", 0.0F));
  if (rope->factor == 0.0F) {  // absent, or written as 0 for "none"; older files have another key
    SPINDLE_ASSIGN_OR_RETURN(rope->factor, keys.FloatOr("rope.scale_linear", 1.0F));
  }
  // llama.cpp takes a factor without a type as linear.
  const std::string type = keys.TextOr("rope.scaling.type", "linear");
  if (type == "yarn") {
    rope->scaling = RopeScaling::kYarn;
  } else if (type == "linear") {
    rope->scaling = rope->factor == 1.0F ? RopeScaling::kNone : RopeScaling::kLinear;
  } else if (type != "none") {
    return absl::UnimplementedError("RoPE scaling '" + type + "'");
  }
  SPINDLE_ASSIGN_OR_RETURN(rope->original_context,
                           keys.UintOr("rope.scaling.original_context_length", 0));
  SPINDLE_ASSIGN_OR_RETURN(rope->beta_fast, keys.FloatOr("rope.scaling.yarn_beta_fast", 32.0F));
  SPINDLE_ASSIGN_OR_RETURN(rope->beta_slow, keys.FloatOr("rope.scaling.yarn_beta_slow", 1.0F));
  SPINDLE_ASSIGN_OR_RETURN(const float multiplier, keys.FloatOr("rope.scaling.attn_factor", 1.0F));
  if (multiplier != 1.0F && rope->scaling == RopeScaling::kYarn) {
    rope->attention_factor = multiplier * (0.1F * std::log(rope->factor) + 1.0F);
  }
  return absl::OkStatus();
}

absl::Status ReadFrequencyFactors(const formats::ModelFile& file, RopeConfig* rope) {
  const formats::TensorInfo* tensor = file.Find("rope_freqs.weight");
  if (tensor == nullptr) {
    return absl::OkStatus();
  }
  if (tensor->type != DType::kF32 || tensor->shape.size() != 1 ||
      tensor->shape[0] != rope->dim / 2) {
    return absl::DataLossError("tensor 'rope_freqs.weight' must be " +
                               std::to_string(rope->dim / 2) + " F32 values");
  }
  const auto* values = reinterpret_cast<const float*>(tensor->bytes.data());
  rope->frequency_factors.assign(values, values + tensor->shape[0]);
  for (const float value : rope->frequency_factors) {
    if (!(value > 0.0F) || !std::isfinite(value)) {
      return absl::DataLossError("tensor 'rope_freqs.weight' holds a value that is not positive");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufConfig(const formats::ModelFile& file) {
  const std::optional<std::string_view> architecture = file.MetaString("general.architecture");
  if (!architecture) {
    return absl::DataLossError("metadata key 'general.architecture' is missing");
  }
  ModelConfig config;
  config.architecture = std::string(*architecture);
  if (config.architecture != "llama" && config.architecture != "qwen2" &&
      config.architecture != "qwen3") {
    return absl::UnimplementedError("architecture '" + config.architecture +
                                    "' (supported in GGUF: llama, qwen2, qwen3)");
  }
  const Keys keys(file, config.architecture);
  SPINDLE_ASSIGN_OR_RETURN(const uint32_t num_experts, keys.UintOr("expert_count", 0));
  if (num_experts > 0) {
    return absl::UnimplementedError("architecture '" + config.architecture +
                                    "' with a mixture of experts");
  }
  config.name = std::string(file.MetaString("general.name").value_or(""));
  SPINDLE_ASSIGN_OR_RETURN(config.num_layers, keys.Uint("block_count"));
  SPINDLE_ASSIGN_OR_RETURN(config.hidden_size, keys.Uint("embedding_length"));
  SPINDLE_ASSIGN_OR_RETURN(config.ffn_size, keys.Uint("feed_forward_length"));
  SPINDLE_ASSIGN_OR_RETURN(config.num_q_heads, keys.Uint("attention.head_count"));
  if (config.num_q_heads == 0) {
    return absl::DataLossError("metadata key 'attention.head_count' is 0");
  }
  SPINDLE_ASSIGN_OR_RETURN(config.num_kv_heads,
                           keys.UintOr("attention.head_count_kv", config.num_q_heads));
  SPINDLE_ASSIGN_OR_RETURN(
      config.head_dim,
      keys.UintOr("attention.key_length", config.hidden_size / config.num_q_heads));
  SPINDLE_ASSIGN_OR_RETURN(const uint32_t value_dim,
                           keys.UintOr("attention.value_length", config.head_dim));
  if (value_dim != config.head_dim) {
    return absl::UnimplementedError("value heads of another size than key heads");
  }
  SPINDLE_ASSIGN_OR_RETURN(config.trained_context, keys.Uint("context_length"));
  SPINDLE_ASSIGN_OR_RETURN(config.norm_eps, keys.FloatOr("attention.layer_norm_rms_epsilon", 0.0F));
  SPINDLE_ASSIGN_OR_RETURN(const uint32_t window, keys.UintOr("attention.sliding_window", 0));
  config.layer_window.assign(std::min<size_t>(config.num_layers, 4096), window);
  config.tied_embeddings =
      file.Find(TensorName(formats::FileKind::kGguf, Role::kHead, 0)) == nullptr;

  SPINDLE_ASSIGN_OR_RETURN(config.rope.base, keys.FloatOr("rope.freq_base", 10000.0F));
  SPINDLE_ASSIGN_OR_RETURN(config.rope.dim, keys.UintOr("rope.dimension_count", config.head_dim));
  config.rope.pairing = config.architecture == "llama" ? kernels::RopePairing::kAdjacent
                                                       : kernels::RopePairing::kHalfSplit;
  SPINDLE_RETURN_IF_ERROR(ReadScaling(keys, &config.rope));
  SPINDLE_RETURN_IF_ERROR(ReadFrequencyFactors(file, &config.rope));
  return config;
}

}  // namespace spindle::model
