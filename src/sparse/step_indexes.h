// Indexes of the sequences of a step: finds the stripes whose index lacks keys that this step
// appends, and the stripes and segments that an algorithm has not seen yet, and completes them
// layer by layer, after the append and before any choice of the layer. Thread-safety: engine-thread
// only while a step begins; Build runs on the pool.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/registry.h"
#include "kv/kv_store.h"
#include "platform/compute_pool.h"
#include "sparse/index_store.h"
#include "sparse/indexed_tokens.h"
#include "sparse/segment_index_store.h"
#include "sparse/sequence_rows.h"
#include "tensor/attention_spec.h"

namespace spindle::sparse {

class StepIndexes {
 public:
  // Borrows all three.
  StepIndexes(const kv::KvStore& store,
              platform::ComputePool& pool,
              const kernels::KernelTable& kernels);

  // ERRORS: kResourceExhausted (memory of indexes).
  [[nodiscard]] absl::Status BeginStep(std::span<const SequenceRows> rows);

  // The rows' keys of the layer are in the store. ERRORS: those of kernels.
  [[nodiscard]] absl::Status Build(LayerIdx layer, const tensor::AttentionSpec& spec);

  // Every layer was built. Without it the next step begins with what this one has left out.
  void EndStep();

  // Of algorithms that have indexed something, in the order of their first.
  [[nodiscard]] std::span<const IndexedTokens> Indexed() const { return indexed_; }

  // Of the step's i-th sequence; empty without an index. Valid until the next step.
  [[nodiscard]] IndexView ViewOf(uint32_t sequence, LayerIdx layer, KvHeadIdx head) const;

 private:
  // One stripe that wants keys.
  struct StripeWork {
    const SparseAlgorithm* algorithm;
    IndexStore* store;
    const uint8_t* stripe;
    uint32_t first_position;
    uint32_t slot;
    uint32_t generation;
    uint32_t lane_begin;
    uint32_t lane_end;
  };

  // One segment without an index.
  struct SegmentWork {
    const SparseAlgorithm* algorithm;
    SegmentIndexStore* store;
    uint32_t blob;
    uint32_t segment;
    std::span<uint8_t* const> stripes;
  };

  // The blobs of a sequence: [begin, end) of blobs_, of one of the stores or none.
  struct SequenceIndex {
    const IndexStore* stripes;
    const SegmentIndexStore* segments;
    size_t begin;
    size_t end;
  };

  void UndoUnfinished();
  void Count(const SparseAlgorithm& algorithm, uint64_t tokens);
  template <typename Store>
  [[nodiscard]] absl::StatusOr<Store*> StoreOf(
      const SparseAlgorithm& algorithm, std::map<const SparseAlgorithm*, Store>* stores) const;
  [[nodiscard]] absl::Status Add(const SequenceRows& rows);
  [[nodiscard]] absl::Status AddStripes(const SequenceRows& rows);
  [[nodiscard]] absl::Status AddSegments(const SequenceRows& rows);
  int BuildHead(const StripeWork& work,
                LayerIdx layer,
                const tensor::AttentionSpec& spec,
                uint32_t head) const;
  int BuildHead(const SegmentWork& work,
                LayerIdx layer,
                uint32_t head,
                BuildWorkspace& workspace) const;

  const kv::KvStore& kv_;
  platform::ComputePool& pool_;
  const kernels::KernelTable& kernels_;
  std::map<const SparseAlgorithm*, IndexStore> stores_;  // made at first use
  std::map<const SparseAlgorithm*, SegmentIndexStore> segment_stores_;
  std::vector<StripeWork> stripe_work_;
  std::vector<SegmentWork> segment_work_;
  std::vector<BuildWorkspace> workspaces_;  // [workers]
  std::vector<IndexedTokens> indexed_;
  std::vector<SequenceIndex> sequences_;
  std::vector<const uint8_t*> blobs_;
};

}  // namespace spindle::sparse
