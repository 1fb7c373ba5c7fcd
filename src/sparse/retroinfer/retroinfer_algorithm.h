// RetroInfer (arXiv 2505.02922): keys of a segment of 1,024 tokens are clustered; a row attends to
// the tokens of the best clusters (retrieval zone), takes the next ones as if all their tokens had
// the mean key and the mean value (estimation zone), and leaves out the rest. Always attended: the
// first 16 tokens, and all that lie behind the last complete segment whose end is at least 64 (or
// recent_tokens) tokens away (steady zone).
//
// Differences from the publication: clusters never span segments, so that sequences share the index
// of a shared segment and generated text is indexed like a prompt; the token budget says how many
// tokens are retrieved, where it speaks of a share of clusters; zones are cut at whole clusters.
// Clusters estimate attention mass (MassEstimate): that of the steady and the retrieval zone of all
// there is; the estimation zone is not attended to.
// Index: 7.1 % of the KV bytes with head_dim 64 and 6.7 % with 128, 4.1 % and 3.6 % in int8.
// Thread-safety: immutable.
#pragma once

#include "sparse/index_type.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

class RetroInferAlgorithm final : public SparseAlgorithm {
 public:
  static constexpr uint32_t kClusterTokens = 16;  // on average
  static constexpr uint32_t kSinkTokens = 16;
  static constexpr uint32_t kLeastRecentTokens = 64;
  static constexpr uint32_t kIterations = 5;
  // Of all clusters, that are estimated unless a request says otherwise.
  static constexpr double kEstimatedShare = 0.232;

  explicit RetroInferAlgorithm(IndexType index_type = IndexType::kBf16) : index_type_(index_type) {}

  [[nodiscard]] std::string_view name() const override { return "retroinfer"; }

  [[nodiscard]] absl::Status CheckSettings(const SparseSettings& settings) const override;

  [[nodiscard]] std::string_view partition() const override { return "cluster"; }

  [[nodiscard]] std::span<const Knob> knobs() const override;

  // The segment that is not indexed yet, half of one on average.
  [[nodiscard]] uint32_t extra_tokens(const SparseSettings& /*settings*/) const override {
    return kSinkTokens + static_cast<uint32_t>(kSegmentTokens) / 2;
  }

  [[nodiscard]] bool mass_estimate() const override { return true; }

  // An estimation zone is a state of the row's own queries.
  [[nodiscard]] bool can_hold() const override { return false; }

  [[nodiscard]] Digest fingerprint() const override { return IndexFingerprint(index_type_); }

  [[nodiscard]] IndexUnit index_unit() const override { return IndexUnit::kSegment; }

  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& geometry) const override;

  [[nodiscard]] int BuildSegment(const SegmentJob& job, BuildWorkspace& workspace) const override;

  void Select(const SelectJob& job, SelectWorkspace& workspace, Selection* out) const override;

 private:
  const IndexType index_type_;
};

}  // namespace spindle::sparse
