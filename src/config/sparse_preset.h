// Files with what is known about sparse attention for one model: the members of a request's
// `spindle.sparse` (docs/http-api.md) as YAML, as defaults of a server or of a served name.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/sparse_request.h"

namespace spindle::config {

// ERRORS: kInvalidArgument naming the file and what is wrong in it. Whether it fits a model shows
// when the model is loaded.
[[nodiscard]] absl::StatusOr<engine::SparseRequest> ReadSparsePreset(const std::string& path);

// A preset with the members that are set, one a line, so that reading it gives the same.
[[nodiscard]] std::string SparsePresetText(const engine::SparseRequest& request);

}  // namespace spindle::config
