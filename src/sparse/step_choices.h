// What the jobs of a step attend to, layer by layer, whoever attends to it afterwards: choices of
// the policies' algorithms and of sparse prefill, choices that an earlier row has made, and
// everything where a layer has a sliding window or its estimate is too small. Thread-safety:
// engine-thread only; choosing runs on the pool.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/registry.h"
#include "kv/kv_geometry.h"
#include "platform/compute_pool.h"
#include "sparse/select_workspace.h"
#include "sparse/step_indexes.h"
#include "sparse/step_jobs.h"
#include "sparse/step_use.h"
#include "tensor/attention_spec.h"

namespace spindle::sparse {

// The rotated queries of one layer, row-major fp32, and their indexes, which are complete.
struct ChoiceQueries {
  LayerIdx layer;
  const tensor::AttentionSpec* spec;
  const float* q;  // [num_rows][q_stride]
  size_t q_stride;
  const StepIndexes* indexes;
};

class StepChoices {
 public:
  // Borrows the pool and the kernels.
  StepChoices(const kv::KvGeometry& geometry,
              platform::ComputePool& pool,
              const kernels::KernelTable& kernels);

  // The jobs of the coming layers; borrowed until the next call.
  void BeginStep(const StepJobs& jobs);

  // Chooses for the layer, and tells `use`. Allocates only where sequences keep their choices.
  [[nodiscard]] absl::Status Choose(const ChoiceQueries& queries, StepUse* use);

  // Of the layer chosen for last: the job attends to everything up to its last row.
  [[nodiscard]] bool IsDense(size_t job) const { return is_dense_[job]; }

  // All jobs do.
  [[nodiscard]] bool AllDense() const { return all_dense_; }

  // REQUIRES: the job is not dense.
  [[nodiscard]] Selection& SelectionOf(size_t job, uint32_t head) { return Of(job, head); }

  // Overwrites `out` with what the job attends to.
  void Copy(size_t job, uint32_t head, Selection* out) const;

 private:
  // Of one job and KV head.
  [[nodiscard]] const Selection& Of(size_t job, uint32_t head) const {
    return choices_[size_t{choice_of_[job]} * geometry_.num_kv_heads + head];
  }

  [[nodiscard]] Selection& Of(size_t job, uint32_t head) {
    return choices_[size_t{choice_of_[job]} * geometry_.num_kv_heads + head];
  }

  template <typename Take>
  [[nodiscard]] absl::Status ForChoices(LayerIdx layer, const Take& take);
  void Select(const ChoiceQueries& queries, size_t job, uint32_t head, SelectWorkspace& workspace);
  // Of a block of a prompt. ERRORS: kernel codes.
  [[nodiscard]] int SelectBlocks(const ChoiceQueries& queries,
                                 size_t job,
                                 uint32_t head,
                                 SelectWorkspace& workspace);
  [[nodiscard]] StoredKeys KeysOf(const StepJob& job, LayerIdx layer, uint32_t head) const;
  // Takes over the choice of the job's anchor, and what has come since.
  void Hold(LayerIdx layer, size_t job, uint32_t head);
  // `chooses`: the layer is one that does.
  void Keep(LayerIdx layer, bool chooses);
  void FallBack(LayerIdx layer, StepUse* use);

  const kv::KvGeometry geometry_;
  platform::ComputePool& pool_;
  const StepJobs* jobs_ = nullptr;
  std::vector<SelectWorkspace> workspaces_;  // of the workers
  std::vector<uint32_t> sparse_jobs_;        // indices of jobs that choose in some layer
  std::vector<uint32_t> choice_of_;          // [jobs] of these: index into sparse_jobs_
  std::vector<Selection> choices_;           // [sparse jobs][num_kv_heads]; grows only
  bool holds_ = false;                       // some job uses an earlier choice
  bool keeps_ = false;                       // … or leaves one
  std::vector<bool> is_dense_;               // [jobs]
  bool all_dense_ = true;
};

}  // namespace spindle::sparse
