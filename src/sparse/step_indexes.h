// Indexes of the sequences of a step: finds the stripes whose index lacks keys that this step
// appends, or that an algorithm has not seen yet, and completes them layer by layer, after the
// append and before any choice of the layer. Thread-safety: engine-thread only while a step begins;
// Build runs on the pool.
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
#include "sparse/sequence_rows.h"

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
  [[nodiscard]] absl::Status Build(LayerIdx layer);

  // Every layer was built. Without it the next step begins with what this one has left out.
  void EndStep() { jobs_.clear(); }

  // Of the step's i-th sequence; empty without an index. Valid until the next step.
  [[nodiscard]] IndexView ViewOf(uint32_t sequence, LayerIdx layer, KvHeadIdx head) const;

  // Memory of all indexes.
  [[nodiscard]] uint64_t committed_bytes() const;

 private:
  // One stripe that wants keys.
  struct Job {
    const SparseAlgorithm* algorithm;
    IndexStore* store;
    const uint8_t* stripe;
    uint32_t slot;
    uint32_t generation;
    uint32_t lane_begin;
    uint32_t lane_end;
  };

  // The blobs of a sequence: [begin, end) of blobs_.
  struct SequenceIndex {
    const IndexStore* store;  // null: none
    size_t begin;
    size_t end;
  };

  void UndoUnfinished();
  [[nodiscard]] absl::StatusOr<IndexStore*> StoreOf(const SparseAlgorithm& algorithm);
  [[nodiscard]] absl::Status Add(const SequenceRows& rows);
  int BuildHead(const Job& job, LayerIdx layer, uint32_t head) const;

  const kv::KvStore& kv_;
  platform::ComputePool& pool_;
  const kernels::KernelTable& kernels_;
  std::map<const SparseAlgorithm*, IndexStore> stores_;  // made at first use
  std::vector<Job> jobs_;
  std::vector<SequenceIndex> sequences_;
  std::vector<const uint8_t*> blobs_;
};

}  // namespace spindle::sparse
