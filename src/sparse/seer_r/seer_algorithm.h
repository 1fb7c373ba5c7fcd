// SeerAttention-R (arXiv 2506.08889): small trained gates predict which blocks of 64 tokens a row
// attends to. A block is remembered as one vector per KV head, projected from the maximum, minimum
// and mean of its keys before rotation and rotated to the block's first position; a row's query
// heads that share a KV head become one gate query. The first block and the row's own are always
// attended. Index: width / 128 · head_dim of the KV bytes. Thread-safety: immutable.
#pragma once

#include "sparse/seer_r/gate_rotation.h"
#include "sparse/seer_r/seer_gates.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

class SeerAlgorithm final : public SparseAlgorithm {
 public:
  static constexpr uint32_t kBlockTokens = 64;

  // REQUIRES: gates as SeerGates describes, for the model whose rows come.
  SeerAlgorithm(SeerGates gates, uint32_t max_positions);

  [[nodiscard]] std::string_view name() const override { return "seer_r"; }

  [[nodiscard]] std::string_view partition() const override { return "block"; }

  // block_size; threshold: below 1, blocks whose share of the gate's softmax passes it are chosen,
  // instead of a budget.
  [[nodiscard]] std::span<const Knob> knobs() const override;

  // The first block.
  [[nodiscard]] uint32_t extra_tokens(const SparseSettings& /*settings*/) const override {
    return kBlockTokens;
  }

  [[nodiscard]] Digest fingerprint() const override { return gates_.digest; }

  [[nodiscard]] uint64_t weight_bytes() const override { return gates_.bytes(); }

  // [width] bf16.
  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& geometry) const override;
  [[nodiscard]] int BuildIndex(const IndexJob& job,
                               const kernels::KernelTable& kernels) const override;
  void Select(const SelectJob& job, SelectWorkspace& workspace, Selection* out) const override;

 private:
  // The gate query of the row, scaled, into the first `width` elements of workspace.query.
  void ProjectQueries(const SelectJob& job, SelectWorkspace& workspace) const;

  // Of all complete blocks, and 0 for the row's own if it is not complete, into workspace.scores.
  void ScoreBlocks(const SelectJob& job, SelectWorkspace& workspace) const;

  const SeerGates gates_;
  const GateRotation rotation_;
};

}  // namespace spindle::sparse
