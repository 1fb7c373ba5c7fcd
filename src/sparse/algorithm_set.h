// The attention algorithms that serve one model: those of the build, and those that need weights of
// their own and have them. Thread-safety: immutable once filled.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "sparse/index_type.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

class AlgorithmSet {
 public:
  // Those of the build, with indexes in bf16 or another type.
  AlgorithmSet() : AlgorithmSet(IndexType::kBf16) {}

  explicit AlgorithmSet(IndexType index_type);

  // REQUIRES: no other of its name.
  void Add(std::shared_ptr<const SparseAlgorithm> algorithm) {
    all_.push_back(std::move(algorithm));
  }

  // Shared with the policies of requests.
  [[nodiscard]] std::span<const std::shared_ptr<const SparseAlgorithm>> all() const { return all_; }

  // Null when no algorithm has this name.
  [[nodiscard]] std::shared_ptr<const SparseAlgorithm> Find(std::string_view name) const;

 private:
  std::vector<std::shared_ptr<const SparseAlgorithm>> all_;
};

}  // namespace spindle::sparse
