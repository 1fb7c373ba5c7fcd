// What the engine's refusals and endings are called in the API (docs/http-api.md). Thread-safety:
// pure functions.
#pragma once

#include <chrono>
#include <string_view>

#include "engine/engine.h"
#include "serving/api_error.h"

namespace spindle::serving {

// Whole seconds in [1, 60], as Retry-After wants them.
[[nodiscard]] std::chrono::milliseconds RetryAfter(std::chrono::milliseconds estimate);

[[nodiscard]] ApiError QueueFull(std::chrono::milliseconds estimate);
[[nodiscard]] ApiError ShuttingDown(std::chrono::milliseconds time_left);
[[nodiscard]] ApiError ModelLoading(double progress, std::chrono::milliseconds time_left);

// `param`: the field that holds the prompt; `budget_param`: the one with the cap in the fast tier.
[[nodiscard]] ApiError FromRefusal(const engine::SubmitRefusal& refusal,
                                   std::string_view param,
                                   std::string_view budget_param);

// `event` is a kDone that did not end well.
[[nodiscard]] ApiError FromEnd(const engine::StreamEvent& event, std::string_view param);

}  // namespace spindle::serving
