// Looks at what an algorithm selects: how much of the true attention mass that covers, how many
// tokens it is, how much of it was selected by the row before. Changes no choice.
// Thread-safety: as documented per class.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "eval/key_index.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::eval {

// Sums over the rows of one layer and KV head.
struct HeadRecord {
  uint64_t rows = 0;
  double attended_tokens = 0;
  double attended_share = 0;  // of the context
  uint64_t measured_rows = 0;
  double mass = 0;  // on all that is attended, mean over the query heads
  // The same without sink and recent tokens: mass on what was selected ÷ mass there was to select.
  double selected_mass = 0;
  // Where the algorithm estimates the mass: its estimate less the truth, both of the query head
  // with the least.
  uint64_t estimated_rows = 0;
  double overestimate = 0;
  uint64_t overlap_rows = 0;
  double overlap = 0;  // share of the selected tokens that the row before had selected too

  HeadRecord& operator+=(const HeadRecord& other);
};

// [layer][KV head] records of one sequence under one policy, whose rows come one per step. Workers
// write to different heads.
class SelectionRecord {
 public:
  SelectionRecord(uint32_t num_layers, uint32_t num_heads);

  [[nodiscard]] uint32_t num_layers() const { return num_layers_; }

  [[nodiscard]] uint32_t num_heads() const { return num_heads_; }

  [[nodiscard]] const HeadRecord& Of(uint32_t layer, uint32_t head) const {
    return heads_[size_t{layer} * num_heads_ + head];
  }

  // The next row belongs to another sequence: it has no row before.
  void BeginSequence();

  void Add(LayerIdx layer,
           KvHeadIdx head,
           const HeadRecord& row,
           const std::vector<uint64_t>& selected);

  // Selected positions of the row before, [⌈tokens / 64⌉]; empty: none.
  [[nodiscard]] const std::vector<uint64_t>& Before(LayerIdx layer, KvHeadIdx head) const {
    return before_[size_t{layer.value()} * num_heads_ + head.value()];
  }

 private:
  const uint32_t num_layers_;
  const uint32_t num_heads_;
  std::vector<HeadRecord> heads_;
  std::vector<std::vector<uint64_t>> before_;
};

// Stands in for `inner`. Which record a row belongs to follows from its policy's settings; rows of
// policies without a record are passed on. No mass is measured of algorithms with an index of
// segments, beside which there is no room for keys.
class SelectionProbe final : public sparse::SparseAlgorithm {
 public:
  // Mass is computed for every `mass_stride`-th row of a sequence, ≥ 1.
  SelectionProbe(const kv::KvGeometry& geometry,
                 std::shared_ptr<const sparse::SparseAlgorithm> inner,
                 uint32_t mass_stride);

  // Borrows both; null ends it. Not while a step runs.
  void Attach(const sparse::SparseSettings& settings, SelectionRecord* record);

  // Shared with the policies that do without a probe.
  [[nodiscard]] const std::shared_ptr<const sparse::SparseAlgorithm>& inner() const {
    return index_.inner();
  }

  [[nodiscard]] std::string_view name() const override { return index_.inner()->name(); }

  [[nodiscard]] std::span<const sparse::Knob> knobs() const override {
    return index_.inner()->knobs();
  }

  [[nodiscard]] absl::Status CheckSettings(const sparse::SparseSettings& settings) const override {
    return index_.inner()->CheckSettings(settings);
  }

  [[nodiscard]] sparse::IndexUnit index_unit() const override {
    return index_.inner()->index_unit();
  }

  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& geometry) const override;
  [[nodiscard]] int BuildIndex(const sparse::IndexJob& job,
                               const kernels::KernelTable& kernels) const override;
  [[nodiscard]] int BuildSegment(const sparse::SegmentJob& job,
                                 sparse::BuildWorkspace& workspace) const override;
  void Select(const sparse::SelectJob& job,
              sparse::SelectWorkspace& workspace,
              sparse::Selection* out) const override;

 private:
  const KeyIndex index_;
  const uint32_t mass_stride_;
  std::map<const sparse::SparseSettings*, SelectionRecord*> records_;
};

}  // namespace spindle::eval
