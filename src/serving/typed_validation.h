// Ranges of requests that arrive typed (gRPC, terminal chat), with the names and codes that the
// JSON fields have. Thread-safety: pure functions.
#pragma once

#include "serving/request_fields.h"

namespace spindle::serving {

// Model name, prompts, sampling and stopping; an empty model name becomes the only served one,
// allowed_token_ids are sorted. The context is checked by ApplyLimits.
[[nodiscard]] MaybeError CheckTyped(const ServingOptions& options,
                                    const ModelFacts& model,
                                    PreparedRequest* request);

}  // namespace spindle::serving
