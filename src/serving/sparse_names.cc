#include "serving/sparse_names.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "engine/algorithm_facts.h"
#include "serving/field_reader.h"

namespace spindle::serving {

MaybeError CheckSparseAlgorithm(std::string_view name, std::string_view path) {
  std::vector<std::string_view> offered;
  for (const engine::AlgorithmFacts& algorithm : engine::OfferedAlgorithms()) {
    offered.push_back(algorithm.name);
  }
  if (name == "auto" || std::ranges::find(offered, name) != offered.end()) {
    return std::nullopt;
  }
  const bool known = std::ranges::find(kKnownAlgorithms, name) != kKnownAlgorithms.end();
  return InvalidRequest(known ? "sparse_algorithm_unavailable" : "invalid_value",
                        std::string(path),
                        fmt::format("'{}' must be one of auto, {}; '{}' is {}.",
                                    path,
                                    fmt::join(offered, ", "),
                                    Excerpt(name),
                                    known ? "not available in this build" : "not known"));
}

}  // namespace spindle::serving
