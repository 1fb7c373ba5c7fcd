// The checks of a body before its template: JSON, model name, field types and ranges, unsupported
// combinations; the first problem in the order of the rules is reported. Thread-safety: pure
// functions.
#pragma once

#include <string>
#include <string_view>

#include "serving/json_document.h"
#include "serving/request_fields.h"

namespace spindle::serving {

// Check 6: reads a JSON object. ERRORS: invalid_json with the byte offset, invalid_type.
[[nodiscard]] MaybeError ParseBody(std::string_view body,
                                   const ModelFacts& model,
                                   JsonDocument* document);

// Check 7: the served name that `model` (null when absent) asks for. ERRORS: invalid_type,
// missing_required_parameter (several models), 404 model_not_found.
[[nodiscard]] MaybeError ResolveModel(const std::optional<JsonValue>& model,
                                      const ServingOptions& options,
                                      std::string* name);
[[nodiscard]] ApiError ModelNotFound(std::string_view name, const ServingOptions& options);

struct ParseInput {
  Endpoint endpoint;
  const ServingOptions& options;
  const ModelFacts& model;
  const Caller& caller;
};

// Checks 6 to 9. `fields->prepared.sampling` must hold the defaults.
[[nodiscard]] MaybeError ParseRequest(std::string_view body,
                                      const ParseInput& input,
                                      RequestFields* fields);

}  // namespace spindle::serving
