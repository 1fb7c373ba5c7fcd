// The attention algorithms that requests may name (API specification 9.1), for listing and
// acceptance alike. Thread-safety: pure functions.
#pragma once

#include <array>
#include <string_view>

#include "serving/api_error.h"

namespace spindle::serving {

// Names of the API, of which builds may lack some (engine::OfferedAlgorithms).
inline constexpr std::array<std::string_view, 6> kKnownAlgorithms = {
    "dense", "streaming", "quest", "shadowkv", "retroinfer", "seer_r"};

// Nothing for `auto` and what is offered. ERRORS: sparse_algorithm_unavailable (a name of the API),
// invalid_value (any other), both listing what is offered.
[[nodiscard]] MaybeError CheckSparseAlgorithm(std::string_view name, std::string_view path);

}  // namespace spindle::serving
