#include <algorithm>
#include <cmath>
#include <string>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "model/config_reader.h"
#include "model/tensor_names.h"

namespace spindle::model {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kMaxListedLayers = 4096;

struct Architecture {
  std::string_view class_name;
  std::string_view name;
  bool window_always_on;  // sliding_window needs no use_sliding_window
  bool has_window;
};

constexpr Architecture kArchitectures[] = {
    {"LlamaForCausalLM", "llama", false, false},
    {"MistralForCausalLM", "mistral", true, true},
    {"Qwen2ForCausalLM", "qwen2", false, true},
    {"Qwen3ForCausalLM", "qwen3", false, true},
};

// A JSON object with errors that name the field; null counts as absent.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  [[nodiscard]] bool Has(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && !found->is_null();
  }

  [[nodiscard]] const Json& At(const char* key) const { return *json_.find(key); }

  absl::StatusOr<uint32_t> Uint(const char* key) const {
    if (!Has(key) || !At(key).is_number_unsigned() || At(key).get<uint64_t>() > UINT32_MAX) {
      return absl::DataLossError(std::string("config.json: '") + key +
                                 "' is missing or not a non-negative integer");
    }
    return At(key).get<uint32_t>();
  }

  absl::StatusOr<uint32_t> UintOr(const char* key, uint32_t fallback) const {
    return Has(key) ? Uint(key) : fallback;
  }

  absl::StatusOr<float> FloatOr(const char* key, float fallback) const {
    if (!Has(key)) {
      return fallback;
    }
    if (!At(key).is_number()) {
      return absl::DataLossError(std::string("config.json: '") + key + "' is not a number");
    }
    return At(key).get<float>();
  }

  absl::StatusOr<bool> BoolOr(const char* key, bool fallback) const {
    if (!Has(key)) {
      return fallback;
    }
    if (!At(key).is_boolean()) {
      return absl::DataLossError(std::string("config.json: '") + key + "' is not true or false");
    }
    return At(key).get<bool>();
  }

  absl::StatusOr<std::string> TextOr(const char* key, const std::string& fallback) const {
    if (!Has(key)) {
      return fallback;
    }
    if (!At(key).is_string()) {
      return absl::DataLossError(std::string("config.json: '") + key + "' is not a string");
    }
    return At(key).get<std::string>();
  }

 private:
  const Json& json_;
};

absl::StatusOr<Architecture> FindArchitecture(const Fields& fields) {
  if (!fields.Has("architectures") || !fields.At("architectures").is_array() ||
      fields.At("architectures").size() != 1 || !fields.At("architectures")[0].is_string()) {
    return absl::DataLossError("config.json: 'architectures' must list one class name");
  }
  const std::string name = fields.At("architectures")[0].get<std::string>();
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.class_name == name) {
      return architecture;
    }
  }
  return absl::UnimplementedError("architecture '" + name +
                                  "' (supported: LlamaForCausalLM, MistralForCausalLM, "
                                  "Qwen2ForCausalLM, Qwen3ForCausalLM)");
}

float MagnitudeScale(float factor, float magnitude) {
  return factor <= 1.0F ? 1.0F : 0.1F * magnitude * std::log(factor) + 1.0F;
}

absl::Status ReadYarn(const Fields& fields, RopeConfig* rope) {
  SPINDLE_ASSIGN_OR_RETURN(rope->beta_fast, fields.FloatOr("beta_fast", 32.0F));
  SPINDLE_ASSIGN_OR_RETURN(rope->beta_slow, fields.FloatOr("beta_slow", 1.0F));
  SPINDLE_ASSIGN_OR_RETURN(rope->attention_factor, fields.FloatOr("attention_factor", 0.0F));
  SPINDLE_ASSIGN_OR_RETURN(const float mscale, fields.FloatOr("mscale", 0.0F));
  SPINDLE_ASSIGN_OR_RETURN(const float mscale_all, fields.FloatOr("mscale_all_dim", 0.0F));
  if (rope->attention_factor == 0.0F && mscale != 0.0F && mscale_all != 0.0F) {
    rope->attention_factor =
        MagnitudeScale(rope->factor, mscale) / MagnitudeScale(rope->factor, mscale_all);
  }
  SPINDLE_ASSIGN_OR_RETURN(const bool truncate, fields.BoolOr("truncate", true));
  if (!truncate) {
    return absl::UnimplementedError("YaRN scaling with 'truncate': false");
  }
  return absl::OkStatus();
}

// The scaling object: "rope_parameters" of newer files, "rope_scaling" of older ones.
absl::Status ReadScaling(const Json& json, uint32_t trained_context, RopeConfig* rope) {
  if (!json.is_object()) {
    return absl::DataLossError("config.json: the RoPE parameters are not an object");
  }
  const Fields fields(json);
  SPINDLE_ASSIGN_OR_RETURN(rope->base, fields.FloatOr("rope_theta", rope->base));
  SPINDLE_ASSIGN_OR_RETURN(const float partial, fields.FloatOr("partial_rotary_factor", 1.0F));
  if (partial != 1.0F) {
    return absl::UnimplementedError("RoPE over a part of each head ('partial_rotary_factor')");
  }
  SPINDLE_ASSIGN_OR_RETURN(const std::string older, fields.TextOr("type", "default"));
  SPINDLE_ASSIGN_OR_RETURN(const std::string type, fields.TextOr("rope_type", older));
  if (type == "default") {
    return absl::OkStatus();
  }
  if (!fields.Has("factor")) {
    return absl::DataLossError("config.json: RoPE scaling '" + type + "' without a factor");
  }
  SPINDLE_ASSIGN_OR_RETURN(rope->factor, fields.FloatOr("factor", 1.0F));
  SPINDLE_ASSIGN_OR_RETURN(rope->original_context,
                           fields.UintOr("original_max_position_embeddings", trained_context));
  if (type == "linear") {
    rope->scaling = RopeScaling::kLinear;
    return absl::OkStatus();
  }
  if (type == "llama3") {
    rope->scaling = RopeScaling::kLlama3;
    SPINDLE_ASSIGN_OR_RETURN(rope->low_freq_factor, fields.FloatOr("low_freq_factor", 1.0F));
    SPINDLE_ASSIGN_OR_RETURN(rope->high_freq_factor, fields.FloatOr("high_freq_factor", 4.0F));
    if (!(rope->low_freq_factor > 0.0F) || !(rope->high_freq_factor > rope->low_freq_factor)) {
      return absl::DataLossError(
          "config.json: high_freq_factor must exceed low_freq_factor, which must be positive");
    }
    return absl::OkStatus();
  }
  if (type == "yarn") {
    rope->scaling = RopeScaling::kYarn;
    return ReadYarn(fields, rope);
  }
  return absl::UnimplementedError("RoPE scaling '" + type + "'");
}

// Which layers attend to a window only.
absl::Status ReadWindows(const Fields& fields,
                         const Architecture& architecture,
                         ModelConfig* config) {
  config->layer_window.assign(std::min(config->num_layers, kMaxListedLayers), 0);
  SPINDLE_ASSIGN_OR_RETURN(const bool use, fields.BoolOr("use_sliding_window", false));
  SPINDLE_ASSIGN_OR_RETURN(const uint32_t window, fields.UintOr("sliding_window", 0));
  if (!architecture.has_window || window == 0 || (!use && !architecture.window_always_on)) {
    return absl::OkStatus();
  }
  uint32_t first = 0;
  if (!architecture.window_always_on) {
    // Layers before max_window_layers keep full attention; 28 is the default of both Qwen classes.
    SPINDLE_ASSIGN_OR_RETURN(first, fields.UintOr("max_window_layers", 28));
  }
  for (uint32_t layer = first; layer < config->layer_window.size(); ++layer) {
    config->layer_window[layer] = window;
  }
  if (!fields.Has("layer_types") || architecture.window_always_on) {
    return absl::OkStatus();
  }
  const Json& types = fields.At("layer_types");
  if (!types.is_array() || types.size() != config->layer_window.size()) {
    return absl::DataLossError("config.json: 'layer_types' must name every layer");
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] != "full_attention" && types[layer] != "sliding_attention") {
      return absl::UnimplementedError("layer type " + types[layer].dump());
    }
    config->layer_window[layer] = types[layer] == "sliding_attention" ? window : 0;
  }
  return absl::OkStatus();
}

absl::Status ReadShape(const Fields& fields, ModelConfig* config) {
  SPINDLE_ASSIGN_OR_RETURN(config->num_layers, fields.Uint("num_hidden_layers"));
  SPINDLE_ASSIGN_OR_RETURN(config->hidden_size, fields.Uint("hidden_size"));
  SPINDLE_ASSIGN_OR_RETURN(config->ffn_size, fields.Uint("intermediate_size"));
  SPINDLE_ASSIGN_OR_RETURN(config->num_q_heads, fields.Uint("num_attention_heads"));
  if (config->num_q_heads == 0) {
    return absl::DataLossError("config.json: 'num_attention_heads' is 0");
  }
  SPINDLE_ASSIGN_OR_RETURN(config->num_kv_heads,
                           fields.UintOr("num_key_value_heads", config->num_q_heads));
  SPINDLE_ASSIGN_OR_RETURN(config->head_dim,
                           fields.UintOr("head_dim", config->hidden_size / config->num_q_heads));
  SPINDLE_ASSIGN_OR_RETURN(config->vocab_size, fields.Uint("vocab_size"));
  SPINDLE_ASSIGN_OR_RETURN(config->trained_context, fields.Uint("max_position_embeddings"));
  SPINDLE_ASSIGN_OR_RETURN(config->norm_eps, fields.FloatOr("rms_norm_eps", 1e-6F));
  SPINDLE_ASSIGN_OR_RETURN(const std::string activation, fields.TextOr("hidden_act", "silu"));
  if (activation != "silu") {
    return absl::UnimplementedError("activation '" + activation + "' (supported: silu)");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadHuggingFaceConfig(const formats::ModelFile& file,
                                                  const std::string& config_json) {
  const Json json = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::DataLossError("config.json is not a JSON object");
  }
  const Fields fields(json);
  if (fields.Has("quantization_config")) {
    return absl::UnimplementedError(
        "config.json: 'quantization_config' (supported: F32, F16, BF16)");
  }
  SPINDLE_ASSIGN_OR_RETURN(const Architecture architecture, FindArchitecture(fields));
  ModelConfig config;
  config.architecture = std::string(architecture.name);
  SPINDLE_ASSIGN_OR_RETURN(config.name, fields.TextOr("_name_or_path", ""));
  SPINDLE_RETURN_IF_ERROR(ReadShape(fields, &config));
  SPINDLE_RETURN_IF_ERROR(ReadWindows(fields, architecture, &config));
  const bool has_head =
      file.Find(TensorName(formats::FileKind::kHuggingFace, Role::kHead, 0)) != nullptr;
  SPINDLE_ASSIGN_OR_RETURN(config.tied_embeddings, fields.BoolOr("tie_word_embeddings", !has_head));

  config.rope.dim = config.head_dim;
  config.rope.pairing = kernels::RopePairing::kHalfSplit;
  SPINDLE_ASSIGN_OR_RETURN(config.rope.base, fields.FloatOr("rope_theta", 10000.0F));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (fields.Has(key)) {
      SPINDLE_RETURN_IF_ERROR(ReadScaling(fields.At(key), config.trained_context, &config.rope));
    }
  }
  return config;
}

}  // namespace spindle::model
