// Reads a ModelConfig from a model file and applies the user's overrides.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "formats/model_file.h"
#include "model/model_config.h"
#include "model/model_options.h"

namespace spindle::model {

// The model as the file describes it; max_model_len is not set yet.
// ERRORS: kUnimplemented (architecture or feature, named), kDataLoss (a key that is missing or
// makes no sense).
[[nodiscard]] absl::StatusOr<ModelConfig> ReadConfig(const formats::ModelFile& file);

// The two readers behind ReadConfig.
[[nodiscard]] absl::StatusOr<ModelConfig> ReadGgufConfig(const formats::ModelFile& file);
//   config_json  text of config.json
[[nodiscard]] absl::StatusOr<ModelConfig> ReadHuggingFaceConfig(const formats::ModelFile& file,
                                                                const std::string& config_json);

// Longest context the model's rotation is made for: the trained length, stretched by linear or YaRN
// scaling.
[[nodiscard]] uint32_t ContextLimit(const ModelConfig& config);

// Applies the RoPE overrides with llama.cpp's meaning, then sets max_model_len.
// ERRORS: kInvalidArgument naming the option and its range.
[[nodiscard]] absl::Status ApplyOptions(const ModelOptions& options, ModelConfig* config);

}  // namespace spindle::model
