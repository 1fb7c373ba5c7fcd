// Gates of SeerAttention-R for a model, from a safetensors file (docs/formats.md).
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/hash.h"
#include "formats/model_file.h"
#include "model/model_config.h"
#include "sparse/seer_r/seer_gates.h"

namespace spindle::model {

// What tells a model apart whatever its quantisation: SHA-256 of the final norm's weights in fp32.
// ERRORS: kDataLoss (the file has none).
[[nodiscard]] absl::StatusOr<Digest> ModelDigest(const formats::ModelFile& file);

// Where gates lie that nobody named: x.gguf → x.gates.safetensors; a folder, or a file of
// safetensors in it → gates.safetensors in the folder. Empty: there is no such file.
[[nodiscard]] std::string FindGatesBeside(const std::string& model_path);

// Reads and checks gates for a model; channels are in the model's order then.
// ERRORS: kNotFound, kPermissionDenied; kDataLoss, kUnimplemented: those of formats::TensorFile;
// kInvalidArgument: made for another model, or for gates of a kind that is not supported, naming
// the key or tensor, what it is and what it must be.
[[nodiscard]] absl::StatusOr<sparse::SeerGates> LoadSeerGates(const std::string& path,
                                                              const formats::ModelFile& file,
                                                              const ModelConfig& config);

}  // namespace spindle::model
