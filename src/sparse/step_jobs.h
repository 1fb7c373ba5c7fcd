// The rows of a step, cut into jobs that one choice of positions serves. Reused from step to step.
// Thread-safety: engine-thread only while it is filled, constant during the layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/rope_append.h"
#include "kv/kv_store.h"
#include "sparse/sequence_rows.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

struct StepJob {
  uint32_t sequence;  // index into sequences()
  uint32_t row_begin;
  uint32_t num_rows;  // 1 with a policy, a block with a prefill
  uint32_t first_position;
  // At most one of the two. Both null: everything is attended, in every layer.
  const SparsePolicy* policy;    // of a generated token
  const PrefillPolicy* prefill;  // of a block of the prompt
  uint32_t decode_step;          // of the row, from the first generated token on
  uint32_t anchor;               // of the policy: the position whose choice is used
  uint32_t tile_begin;           // of tiles(): all positions up to the last row's
  uint32_t tile_end;

  [[nodiscard]] uint32_t num_tokens() const { return first_position + num_rows; }

  // In some layers a choice is made.
  [[nodiscard]] bool IsSparse() const { return policy != nullptr || prefill != nullptr; }

  // … for this job; else an earlier one holds.
  [[nodiscard]] bool Chooses() const { return anchor == first_position; }

  // No choice is made in this layer.
  [[nodiscard]] bool IsDense(LayerIdx layer) const {
    return policy != nullptr ? policy->IsDenseLayer(layer)
                             : prefill == nullptr || prefill->IsDenseLayer(layer);
  }
};

struct StepSequence {
  SequenceRows rows;
  std::span<uint8_t* const> stripes;  // of the store, position order
  uint32_t job_begin;
  uint32_t job_end;
};

class StepJobs {
 public:
  // Borrows the store.
  explicit StepJobs(kv::KvStore& store);

  void Clear();

  // REQUIRES: sequence.row_begin is the number of rows added so far.
  void Add(const SequenceRows& sequence);

  [[nodiscard]] std::span<const StepSequence> sequences() const { return sequences_; }

  [[nodiscard]] std::span<const StepJob> jobs() const { return jobs_; }

  // The tiles of a job that attends to everything.
  [[nodiscard]] std::span<const TileLive> DenseTilesOf(const StepJob& job) const {
    return std::span(tiles_).subspan(job.tile_begin, job.tile_end - job.tile_begin);
  }

  // Jobs that choose in some layer.
  [[nodiscard]] uint32_t num_sparse_jobs() const { return num_sparse_jobs_; }

  [[nodiscard]] uint32_t num_rows() const { return static_cast<uint32_t>(positions_.size()); }

  [[nodiscard]] uint32_t last_position() const { return last_position_; }

  // Most rows of one job.
  [[nodiscard]] uint32_t max_job_rows() const { return max_job_rows_; }

  [[nodiscard]] std::span<const int32_t> positions() const { return positions_; }

  // Where the rows' K and V of a layer go.
  [[nodiscard]] std::span<const kernels::KvSlot> SlotsOf(uint32_t layer);

 private:
  void AddJob(const SequenceRows& sequence,
              uint32_t first_position,
              uint32_t num_rows,
              const SparsePolicy* policy,
              const PrefillPolicy* prefill);

  kv::KvStore& store_;
  std::vector<StepSequence> sequences_;
  std::vector<StepJob> jobs_;
  std::vector<TileLive> tiles_;
  std::vector<int32_t> positions_;      // [num_rows]
  std::vector<kernels::KvSlot> slots_;  // [num_rows], of layer slots_layer_
  uint32_t slots_layer_ = 0;
  uint32_t last_position_ = 0;
  uint32_t max_job_rows_ = 0;
  uint32_t num_sparse_jobs_ = 0;
};

}  // namespace spindle::sparse
