// The attention algorithms that requests may name (API specification 9.1), for listing and
// acceptance alike. Thread-safety: pure functions.
#pragma once

#include <array>
#include <string_view>

#include "serving/api_error.h"

namespace spindle::serving {

// Names of the API. Those that need weights of their own are there if the model has them
// (engine::FactsOf).
inline constexpr std::array<std::string_view, 6> kKnownAlgorithms = {
    "dense", "streaming", "quest", "shadowkv", "retroinfer", "seer_r"};

// Nothing for `auto` and the names of the API. ERRORS: invalid_value, listing them.
[[nodiscard]] MaybeError CheckSparseAlgorithm(std::string_view name, std::string_view path);

// For a name of the API that the model in service lacks the weights for.
[[nodiscard]] ApiError SparseAlgorithmUnavailable(std::string_view name);

}  // namespace spindle::serving
