// The attention algorithms of this build, by name. Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

// Shared with the policies of requests.
[[nodiscard]] std::span<const std::shared_ptr<const SparseAlgorithm>> Algorithms();

// Null when no algorithm has this name.
[[nodiscard]] std::shared_ptr<const SparseAlgorithm> FindAlgorithm(std::string_view name);

}  // namespace spindle::sparse
