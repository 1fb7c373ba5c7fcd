#include "sparse/algorithm_set.h"

#include "sparse/algorithm_registry.h"

namespace spindle::sparse {

AlgorithmSet::AlgorithmSet() : all_(Algorithms().begin(), Algorithms().end()) {}

std::shared_ptr<const SparseAlgorithm> AlgorithmSet::Find(std::string_view name) const {
  return FindAlgorithm(name, all_);
}

}  // namespace spindle::sparse
