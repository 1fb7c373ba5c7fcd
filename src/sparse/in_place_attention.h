// Attention that reads host pages where they are: the mode of machines whose fast memory is host
// memory. One list of runs serves all layers and heads where the choice is uniform.
// Thread-safety: engine-thread only. Borrows what it is constructed with.
#pragma once

#include <cstdint>
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
  // Half-open, of runs_.
  struct RunRange {
    size_t begin;
    size_t end;
  };

  // Runs of the jobs whose choice differs between heads; they begin behind the uniform ones.
  void BuildLayerRuns(LayerIdx layer);
  void BuildItems(const LayerQueries& queries);
  [[nodiscard]] absl::Status Plan(const kernels::AttentionArgs& args);

  const kv::KvGeometry geometry_;
  platform::ComputePool& pool_;
  const kernels::KernelTable& kernels_;
  const StepJobs* jobs_ = nullptr;
  std::vector<TileLive> tiles_;       // of one job and head at a time
  std::vector<kernels::KvRun> runs_;  // for layer 0 and head 0
  size_t num_uniform_runs_ = 0;
  std::vector<RunRange> ranges_;               // [num jobs][num_kv_heads]
  std::vector<kernels::AttentionItem> items_;  // job-major, then KV heads

  // The plan depends on shapes only, so that layers of a step share it while all choices are
  // uniform.
  kernels::AttentionPlan plan_{};
  bool has_plan_ = false;
  uint32_t plan_window_ = 0;
  std::vector<kernels::AttentionUnit> units_;
  platform::AlignedBuffer partials_;
};

}  // namespace spindle::sparse
