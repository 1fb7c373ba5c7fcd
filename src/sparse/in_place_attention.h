// Attention that reads host pages where they are: the mode of machines whose fast memory is host
// memory. Jobs that attend to everything share one list of runs for all layers and heads; the
// others have one per KV head. Thread-safety: engine-thread only. Borrows what it is constructed
// with.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/registry.h"
#include "kv/kv_geometry.h"
#include "platform/compute_pool.h"
#include "platform/memory.h"
#include "sparse/layer_attention.h"

namespace spindle::sparse {

class InPlaceAttention final : public LayerAttention {
 public:
  // `max_tiles`: most tiles of a sequence.
  InPlaceAttention(const kv::KvGeometry& geometry,
                   uint64_t max_tiles,
                   platform::ComputePool& pool,
                   const kernels::KernelTable& kernels);

  void BeginStep(const StepJobs& jobs) override;
  [[nodiscard]] absl::Status Attend(const LayerQueries& queries) override;

 private:
  // Half-open, of dense_runs_.
  struct RunRange {
    size_t begin;
    size_t end;
  };

  [[nodiscard]] absl::Status BuildRuns(StepChoices& choices);
  void BuildItems(const LayerQueries& queries);
  [[nodiscard]] absl::Status Plan(const kernels::AttentionArgs& args, bool is_dense);

  const kv::KvGeometry geometry_;
  platform::ComputePool& pool_;
  const kernels::KernelTable& kernels_;
  const StepJobs* jobs_ = nullptr;
  std::vector<kernels::KvRun> dense_runs_;  // for layer 0 and head 0
  std::vector<RunRange> ranges_;            // [num jobs]
  std::vector<uint32_t> sparse_jobs_;       // indices of jobs that choose in some layer
  // [sparse jobs][num_kv_heads] for layer 0 and head 0, of the layer in progress; grows only
  std::vector<std::vector<kernels::KvRun>> chosen_runs_;
  std::vector<kernels::AttentionItem> items_;  // job-major, then KV heads

  // The plan depends on shapes only, so that layers of a step share it while everything is
  // attended.
  kernels::AttentionPlan plan_{};
  bool has_dense_plan_ = false;
  uint32_t plan_window_ = 0;
  std::vector<kernels::AttentionUnit> units_;
  platform::AlignedBuffer partials_;
};

}  // namespace spindle::sparse
