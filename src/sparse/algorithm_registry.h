// The attention algorithms that work with every model, by name; see AlgorithmSet for those that
// need weights of their own. Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "sparse/index_type.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

// Names of those that need weights of their own: known, and there if a model has the weights.
inline constexpr std::string_view kAlgorithmsWithWeights[] = {"seer_r"};

// With indexes of this type. Shared with the policies of requests.
[[nodiscard]] std::span<const std::shared_ptr<const SparseAlgorithm>> Algorithms(
    IndexType index_type = IndexType::kBf16);

// Null when none of them has this name.
[[nodiscard]] std::shared_ptr<const SparseAlgorithm> FindAlgorithm(
    std::string_view name,
    std::span<const std::shared_ptr<const SparseAlgorithm>> among = Algorithms());

}  // namespace spindle::sparse
