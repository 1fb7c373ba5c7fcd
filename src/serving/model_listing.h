// The model list of GET /v1/models. Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "serving/served_model.h"
#include "serving/serving_options.h"

namespace spindle::serving {

[[nodiscard]] std::string ModelListJson(const ServingOptions& options, const ServedModel& model);
[[nodiscard]] std::string ModelEntryJson(std::string_view id,
                                         const ServingOptions& options,
                                         const ServedModel& model);

}  // namespace spindle::serving
