#include "serving/sparse_names.h"

#include <algorithm>

#include <fmt/format.h>

#include "serving/field_reader.h"

namespace spindle::serving {

MaybeError CheckSparseAlgorithm(std::string_view name, std::string_view path) {
  if (name == "auto" || std::ranges::find(kOfferedAlgorithms, name) != kOfferedAlgorithms.end()) {
    return std::nullopt;
  }
  const bool known = std::ranges::find(kMissingAlgorithms, name) != kMissingAlgorithms.end();
  return InvalidRequest(known ? "sparse_algorithm_unavailable" : "invalid_value",
                        std::string(path),
                        fmt::format("'{}' must be one of auto, {}; '{}' is {}.",
                                    path,
                                    fmt::join(kOfferedAlgorithms, ", "),
                                    Excerpt(name),
                                    known ? "not available in this build" : "not known"));
}

}  // namespace spindle::serving
