// The `spindle.kv` object of section 9.1: where a request's KV may be, how much of the fast tier it
// may take, and whether it is kept. Thread-safety: pure functions.
#pragma once

#include <string_view>

#include "serving/field_handlers.h"

namespace spindle::serving {

// A field that is known and not offered.
[[nodiscard]] ApiError NotAvailable(std::string_view path);
[[nodiscard]] ApiError UnknownMember(std::string_view path);

// Checks what depends on other fields too, so they must have been read. Sets the prepared request.
[[nodiscard]] MaybeError ReadKv(JsonValue value, const FieldContext& context);

}  // namespace spindle::serving
