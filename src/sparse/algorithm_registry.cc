#include "sparse/algorithm_registry.h"

#include <array>

#include "sparse/dense/dense_algorithm.h"

namespace spindle::sparse {

const SparseAlgorithm* FindAlgorithm(std::string_view name) {
  static const DenseAlgorithm dense;
  static const std::array<const SparseAlgorithm*, 1> algorithms = {&dense};
  for (const SparseAlgorithm* algorithm : algorithms) {
    if (algorithm->name() == name) {
      return algorithm;
    }
  }
  return nullptr;
}

}  // namespace spindle::sparse
