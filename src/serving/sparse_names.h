// Names of attention algorithms and of methods of sparse prefill in requests, for listing and
// acceptance alike: those of engine/algorithm_facts.h. Thread-safety: pure functions.
#pragma once

#include <string_view>

#include "serving/api_error.h"

namespace spindle::serving {

// Nothing for `auto` and the known names. ERRORS: invalid_value, listing them.
[[nodiscard]] MaybeError CheckSparseAlgorithm(std::string_view name, std::string_view path);

// Nothing for the known names. ERRORS: invalid_value, listing them.
[[nodiscard]] MaybeError CheckSparsePrefill(std::string_view name, std::string_view path);

// For a known name that the model in service lacks the weights for.
[[nodiscard]] ApiError SparseAlgorithmUnavailable(std::string_view name);

}  // namespace spindle::serving
