// The `spindle.sparse` object (docs/http-api.md): how generated tokens and prompts are attended.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/sparse_request.h"
#include "serving/field_handlers.h"

namespace spindle::serving {

// Fills the prepared request's `sparse`. What depends on the model is checked by ApplySparse.
[[nodiscard]] MaybeError ReadSparse(JsonValue value, const FieldContext& context);

inline constexpr std::string_view kAuditEvery = "spindle.audit_every";
inline constexpr int64_t kMaxAuditEvery = INT32_MAX;

// ERRORS: invalid_value above kMaxAuditEvery; insufficient_permissions unless the server allows
// audits.
[[nodiscard]] MaybeError CheckAudit(const ServingOptions& options, uint32_t audit_every);

// The object as JSON text from elsewhere than a request's body: checked in the same way.
[[nodiscard]] Result<engine::SparseRequest> ParseSparse(std::string_view json);

// Resolves what was asked for against the server's defaults and the model's shape.
[[nodiscard]] MaybeError ApplySparse(const ServingOptions& options,
                                     const ServedModel& model,
                                     PreparedRequest* request);

}  // namespace spindle::serving
