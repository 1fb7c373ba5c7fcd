// The exact keys of a context as an index, so that what other algorithms estimate can be computed:
// the softmax of a row over every position. Costs half of the KV bytes and reads all of it per row:
// for measuring only. Thread-safety: immutable value and pure functions.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/registry.h"
#include "kv/kv_geometry.h"
#include "sparse/select_workspace.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::eval {

// The index of an algorithm with the keys of the stripe behind it: [inner index | keys], keys
// [64][head_dim] bf16 (rounded where the store keeps fp32).
class KeyIndex {
 public:
  // `inner` null: the keys alone. An inner algorithm whose index is one of segments gets no keys.
  KeyIndex(const kv::KvGeometry& geometry, std::shared_ptr<const sparse::SparseAlgorithm> inner);

  [[nodiscard]] const std::shared_ptr<const sparse::SparseAlgorithm>& inner() const {
    return inner_;
  }

  [[nodiscard]] bool has_keys() const { return key_bytes_ > 0; }

  // As SparseAlgorithm.
  [[nodiscard]] uint32_t bytes() const { return inner_bytes_ + key_bytes_; }

  [[nodiscard]] int Build(const sparse::IndexJob& job, const kernels::KernelTable& kernels) const;

  // Leaves in workspace.scores [group][num_tokens] the attention mass of each position, as softmax
  // over all positions of the context; rows sum to 1. Overwrites workspace.query. REQUIRES:
  // has_keys.
  void ComputeMass(const sparse::SelectJob& job, sparse::SelectWorkspace& workspace) const;

 private:
  const std::shared_ptr<const sparse::SparseAlgorithm> inner_;  // shared with policies
  const uint32_t inner_bytes_;
  const uint32_t key_bytes_;
};

}  // namespace spindle::eval
