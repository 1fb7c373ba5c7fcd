// Quest (arXiv 2406.10774): per page of 16 tokens the channel-wise bounds of its keys, which bound
// every q·k in the page from above; the pages with the largest bounds are attended. Where query
// heads share a KV head their bounds are put on one scale by a softmax, and a page counts as its
// best head says. `bound_weight` under 1 ranks pages between the centre of their keys and the
// bound: where many bounds are loose they hide the page with the one key that matters. Index: 6.3 %
// of the KV bytes, 3.2 % in int8. Thread-safety: immutable.
#pragma once

#include "sparse/index_type.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

class QuestAlgorithm final : public SparseAlgorithm {
 public:
  static constexpr uint32_t kPageTokens = 16;

  explicit QuestAlgorithm(IndexType index_type = IndexType::kBf16) : index_type_(index_type) {}

  [[nodiscard]] std::string_view name() const override { return "quest"; }

  [[nodiscard]] std::string_view partition() const override { return "block"; }

  [[nodiscard]] std::span<const Knob> knobs() const override;

  [[nodiscard]] Digest fingerprint() const override { return IndexFingerprint(index_type_); }

  // [64 / 16 pages] vectors [max(head_dim) | min(head_dim)].
  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& geometry) const override;
  [[nodiscard]] int BuildIndex(const IndexJob& job,
                               const kernels::KernelTable& kernels) const override;
  void Select(const SelectJob& job, SelectWorkspace& workspace, Selection* out) const override;

 private:
  [[nodiscard]] kernels::VectorBlock VectorsOf(uint32_t head_dim) const;

  const IndexType index_type_;
};

}  // namespace spindle::sparse
