#include "sparse/exact_lse.h"

#include <array>

#include "base/status_macros.h"
#include "sparse/run_builder.h"

namespace spindle::sparse {

void ExactLse(const SelectJob& job,
              std::span<const TileLive> tiles,
              SelectWorkspace& workspace,
              std::span<float> lse) {
  const StoredKeys& keys = *job.keys;
  workspace.runs.clear();
  AppendRuns(*keys.geometry, keys.stripes, tiles, &workspace.runs);
  // Only the scores count, so keys stand in for the values: nothing else is read.
  for (kernels::KvRun& run : workspace.runs) {
    run.v = run.k;
  }
  const size_t width = size_t{job.group} * job.head_dim;
  workspace.attended.resize(width + size_t{job.group} * (job.head_dim + 2));
  const kernels::AttentionItem item{
      .q = job.q,
      .out = workspace.attended.data(),
      .lse = lse.data(),
      .runs = workspace.runs.data(),
      .num_runs = static_cast<uint32_t>(workspace.runs.size()),
      .num_rows = 1,
      .first_position = job.position,
      .window = 0,
      .kv_offset = keys.kv_offset,
      // Keeps the item in one unit.
      .state = workspace.attended.data() + width,
  };
  const kernels::AttentionArgs args{
      .items = &item,
      .num_items = 1,
      .q_stride = width,
      .out_stride = width,
      .head_dim = job.head_dim,
      .group = job.group,
      .scale = job.scale,
      .softcap = job.softcap,
      .kv_type = keys.geometry->type,
  };
  std::array<kernels::AttentionUnit, 1> units;
  kernels::AttentionPlan plan{};
  plan.units = units.data();
  plan.unit_capacity = units.size();
  SPINDLE_CHECK(workspace.kernels.plan_attention(args, 1, &plan) == kernels::kOk);
  SPINDLE_CHECK(workspace.kernels.attention(args, plan, {0, plan.num_units}, workspace.exec) ==
                kernels::kOk);
}

}  // namespace spindle::sparse
