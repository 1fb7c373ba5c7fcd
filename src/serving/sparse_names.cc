#include "serving/sparse_names.h"

#include <algorithm>

#include <fmt/format.h>

#include "serving/field_reader.h"

namespace spindle::serving {

MaybeError CheckSparseAlgorithm(std::string_view name, std::string_view path) {
  if (name == "auto" || std::ranges::find(kKnownAlgorithms, name) != kKnownAlgorithms.end()) {
    return std::nullopt;
  }
  return InvalidRequest("invalid_value",
                        std::string(path),
                        fmt::format("'{}' must be one of auto, {}; '{}' is not known.",
                                    path,
                                    fmt::join(kKnownAlgorithms, ", "),
                                    Excerpt(name)));
}

ApiError SparseAlgorithmUnavailable(std::string_view name) {
  return InvalidRequest(
      "sparse_algorithm_unavailable",
      "spindle.sparse.algorithm",
      fmt::format("'{}' is not available: the model was loaded without its weights.", name));
}

}  // namespace spindle::serving
