// The `spindle.kv` object (docs/http-api.md): where a request's KV may be, how much of the fast
// tier it may take, and whether it is kept. Thread-safety: pure functions.
#pragma once

#include <string_view>

#include "serving/field_handlers.h"
#include "serving/kv_wishes.h"

namespace spindle::serving {

// A field that is known and not offered.
[[nodiscard]] ApiError NotAvailable(std::string_view path);
[[nodiscard]] ApiError UnknownMember(std::string_view path);

// The field that gave the request its cap in the fast tier. REQUIRES: it has one.
[[nodiscard]] std::string_view FastBudgetParam(const PreparedRequest& request);

// Reads the object and applies it. What it says depends on other fields too, so they must have been
// read.
[[nodiscard]] MaybeError ReadKv(JsonValue value, const FieldContext& context);

// Checks values and combinations and sets the prepared request, for JSON and typed callers alike.
// Paths in errors begin with `spindle.kv`. `num_prompts`: of the request.
[[nodiscard]] MaybeError ApplyKv(const KvWishes& wishes,
                                 const ModelFacts& model,
                                 const Caller& caller,
                                 size_t num_prompts,
                                 PreparedRequest* request);

}  // namespace spindle::serving
