#include "serving/sparse_names.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "engine/algorithm_facts.h"
#include "serving/field_reader.h"

namespace spindle::serving {
namespace {

MaybeError CheckAmong(const std::vector<std::string_view>& known,
                      std::string_view name,
                      std::string_view path) {
  if (std::ranges::find(known, name) != known.end()) {
    return std::nullopt;
  }
  return InvalidRequest("invalid_value",
                        std::string(path),
                        fmt::format("'{}' must be one of {}; '{}' is not known.",
                                    path,
                                    fmt::join(known, ", "),
                                    Excerpt(name)));
}

}  // namespace

MaybeError CheckSparseAlgorithm(std::string_view name, std::string_view path) {
  std::vector<std::string_view> known = engine::KnownAlgorithms();
  known.insert(known.begin(), "auto");
  return CheckAmong(known, name, path);
}

MaybeError CheckSparsePrefill(std::string_view name, std::string_view path) {
  return CheckAmong(engine::KnownPrefills(), name, path);
}

ApiError SparseAlgorithmUnavailable(std::string_view name) {
  return InvalidRequest(
      "sparse_algorithm_unavailable",
      "spindle.sparse.algorithm",
      fmt::format("'{}' is not available: the model was loaded without its weights.", name));
}

}  // namespace spindle::serving
