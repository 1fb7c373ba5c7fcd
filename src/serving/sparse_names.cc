#include "serving/sparse_names.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "engine/algorithm_facts.h"
#include "serving/field_reader.h"

namespace spindle::serving {

MaybeError CheckSparseAlgorithm(std::string_view name, std::string_view path) {
  const std::vector<std::string_view> known = engine::KnownAlgorithms();
  if (name == "auto" || std::ranges::find(known, name) != known.end()) {
    return std::nullopt;
  }
  return InvalidRequest("invalid_value",
                        std::string(path),
                        fmt::format("'{}' must be one of auto, {}; '{}' is not known.",
                                    path,
                                    fmt::join(known, ", "),
                                    Excerpt(name)));
}

ApiError SparseAlgorithmUnavailable(std::string_view name) {
  return InvalidRequest(
      "sparse_algorithm_unavailable",
      "spindle.sparse.algorithm",
      fmt::format("'{}' is not available: the model was loaded without its weights.", name));
}

}  // namespace spindle::serving
