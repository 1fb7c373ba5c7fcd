// ShadowKV (arXiv 2410.21465) with exact keys: the keys of 8 neighbouring tokens are nearly
// parallel, so their mean, the landmark, scores the chunk; chunks for which that is not so, the
// outliers, are always attended on top of the budget. Where query heads share a KV head, a chunk
// counts as its best head says. Landmarks estimate the attention mass of chunks (MassEstimate).
// Index: 6.4 % of the KV bytes, 3.3 % in int8. Thread-safety: immutable.
#pragma once

#include <array>

#include "sparse/fixed_partitions.h"
#include "sparse/index_type.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

class ShadowKvAlgorithm final : public SparseAlgorithm {
 public:
  static constexpr uint32_t kChunkTokens = 8;
  static constexpr uint32_t kDefaultOutlierChunks = 48;

  static constexpr uint32_t kMaxOutlierChunks = 4096;

  // Preset of the knob `outlier_chunks`: most of them, per KV head.
  explicit ShadowKvAlgorithm(uint32_t outlier_chunks = kDefaultOutlierChunks,
                             IndexType index_type = IndexType::kBf16)
      : index_type_(index_type),
        knobs_{Knob{"chunk_size", kChunkTokens, kChunkTokens, kChunkTokens},
               Knob{"outlier_chunks", 0, kMaxOutlierChunks, static_cast<double>(outlier_chunks)}} {}

  [[nodiscard]] std::string_view name() const override { return "shadowkv"; }

  [[nodiscard]] std::string_view partition() const override { return "chunk"; }

  [[nodiscard]] std::span<const Knob> knobs() const override { return knobs_; }

  // Outliers.
  [[nodiscard]] uint32_t extra_tokens(const SparseSettings& settings) const override {
    return kChunkTokens * static_cast<uint32_t>(KnobOf(settings, kOutlierChunksKnob));
  }

  [[nodiscard]] bool mass_estimate() const override { return true; }

  [[nodiscard]] Digest fingerprint() const override { return IndexFingerprint(index_type_); }

  // [64 / 8 chunks] landmarks, then [64 / 8] uint16: how far the least parallel key is from its
  // landmark, (1 - cosine) · 32767, larger is farther.
  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& geometry) const override;
  [[nodiscard]] int BuildIndex(const IndexJob& job,
                               const kernels::KernelTable& kernels) const override;
  void Select(const SelectJob& job, SelectWorkspace& workspace, Selection* out) const override;

 private:
  static constexpr size_t kOutlierChunksKnob = 1;

  [[nodiscard]] kernels::VectorBlock LandmarksOf(uint32_t head_dim) const;
  void ReadDeviations(const SelectJob& job,
                      PartitionRange chunks,
                      SelectWorkspace& workspace) const;

  const IndexType index_type_;
  const std::array<Knob, 2> knobs_;
};

}  // namespace spindle::sparse
