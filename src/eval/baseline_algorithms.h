// What sparse attention is judged against: the best choice there is, and the worst that is not
// foolish. Both take whole partitions beside the sink and recent tokens, as real algorithms do.
// Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "eval/key_index.h"
#include "sparse/fixed_partitions.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::eval {

// Chooses the partitions with the largest attention mass, which it computes exactly: the mean over
// the query heads of the KV head, so that no other choice of as many partitions covers more of it.
class OracleAlgorithm final : public sparse::SparseAlgorithm {
 public:
  // With `matched` it takes as many tokens as that algorithm attends to at the same place, with
  // the same settings, whatever makes up their number (for example outliers beside the budget),
  // and less than a partition more. Null: the budget. REQUIRES: partition_tokens divides 64;
  // `matched` has an index of stripes, or none.
  OracleAlgorithm(const kv::KvGeometry& geometry,
                  uint32_t partition_tokens,
                  std::shared_ptr<const sparse::SparseAlgorithm> matched);

  [[nodiscard]] std::string_view name() const override { return "oracle"; }

  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& geometry) const override;
  [[nodiscard]] int BuildIndex(const sparse::IndexJob& job,
                               const kernels::KernelTable& kernels) const override;
  void Select(const sparse::SelectJob& job,
              sparse::SelectWorkspace& workspace,
              sparse::Selection* out) const override;

 private:
  // Into workspace.best.
  void RankByMass(const sparse::SelectJob& job,
                  sparse::PartitionRange candidates,
                  sparse::SelectWorkspace& workspace) const;

  const uint32_t partition_tokens_;
  const KeyIndex index_;
};

// Chooses partitions by chance, anew for every row, layer and KV head: a function of the seed and
// the place.
class RandomAlgorithm final : public sparse::SparseAlgorithm {
 public:
  RandomAlgorithm(uint32_t partition_tokens, uint64_t seed)
      : partition_tokens_(partition_tokens), seed_(seed) {}

  [[nodiscard]] std::string_view name() const override { return "random"; }

  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& /*geometry*/) const override {
    return 0;
  }

  [[nodiscard]] int BuildIndex(const sparse::IndexJob& /*job*/,
                               const kernels::KernelTable& /*kernels*/) const override {
    return kernels::kOk;
  }

  void Select(const sparse::SelectJob& job,
              sparse::SelectWorkspace& workspace,
              sparse::Selection* out) const override;

 private:
  const uint32_t partition_tokens_;
  const uint64_t seed_;
};

}  // namespace spindle::eval
