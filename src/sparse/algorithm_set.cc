#include "sparse/algorithm_set.h"

#include "sparse/algorithm_registry.h"

namespace spindle::sparse {

AlgorithmSet::AlgorithmSet(IndexType index_type)
    : all_(Algorithms(index_type).begin(), Algorithms(index_type).end()) {}

std::shared_ptr<const SparseAlgorithm> AlgorithmSet::Find(std::string_view name) const {
  return FindAlgorithm(name, all_);
}

}  // namespace spindle::sparse
