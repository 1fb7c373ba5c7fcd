// The example of docs/add-an-algorithm.md: blocks of 16 tokens, known by the mean of their keys.
// Not part of the server. Thread-safety: stateless.
#pragma once

#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

class MeanKeyAlgorithm final : public SparseAlgorithm {
 public:
  static constexpr uint32_t kBlockTokens = 16;

  [[nodiscard]] std::string_view name() const override { return "mean_key"; }

  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& geometry) const override;

  [[nodiscard]] int BuildIndex(const IndexJob& job,
                               const kernels::KernelTable& kernels) const override;

  void Select(const SelectJob& job, SelectWorkspace& workspace, Selection* out) const override;
};

}  // namespace spindle::sparse
