// JSON that came from outside, parsed with a bounded depth and without exceptions. Include only
// from .cc files. Thread-safety: pure functions.
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace spindle::text {

// Keeps the order of keys: templates print objects in the order they were written.
using Json = nlohmann::ordered_json;

// `what` names the text in messages. Depth is at most 100 (the template engine's own reader stops
// at 128). ERRORS: kInvalidArgument (not JSON, not UTF-8, too deep).
[[nodiscard]] absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view what);

}  // namespace spindle::text
