// The `spindle.sparse` object of section 9.1: how generated tokens are attended.
// Thread-safety: pure functions.
#pragma once

#include "serving/field_handlers.h"

namespace spindle::serving {

// Fills the prepared request's `sparse`. What depends on the model is checked by ApplySparse.
[[nodiscard]] MaybeError ReadSparse(JsonValue value, const FieldContext& context);

// Resolves what was asked for against the server's defaults and the model's shape.
[[nodiscard]] MaybeError ApplySparse(const ServingOptions& options,
                                     const ServedModel& model,
                                     PreparedRequest* request);

}  // namespace spindle::serving
