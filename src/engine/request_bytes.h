// What requests take in the engine at most, their KV excluded, for those who add up memory before
// it is taken. Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "engine/engine_options.h"

namespace spindle::engine {

struct RequestBounds {
  uint64_t num_requests;  // that wait, run or were preempted
  uint64_t num_tokens;    // of their prompts and answers
};

[[nodiscard]] RequestBounds RequestBoundsOf(const EngineOptions& options, uint32_t max_model_len);

// `max_choices`: of one request. `num_layers`: of the model.
[[nodiscard]] uint64_t RequestBytes(const EngineOptions& options,
                                    uint32_t max_model_len,
                                    uint32_t max_choices,
                                    uint32_t num_layers);

}  // namespace spindle::engine
