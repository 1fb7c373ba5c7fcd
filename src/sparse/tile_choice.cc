#include "sparse/tile_choice.h"

#include <span>

namespace spindle::sparse {

void ChooseTiles(const StepJobs& jobs,
                 size_t job_idx,
                 const LayerQueries& queries,
                 uint32_t head,
                 SelectWorkspace& workspace,
                 Selection* out) {
  const StepJob& job = jobs.jobs()[job_idx];
  const std::span<const TileLive> dense = jobs.DenseTilesOf(job);
  out->Clear();
  if (job.IsDense(queries.layer)) {
    out->tiles.assign(dense.begin(), dense.end());
    out->mass = 1;
    return;
  }
  const KvHeadIdx kv_head(static_cast<uint16_t>(head));
  const SparsePolicy& policy = *job.policy;
  const SelectJob select{
      .position = job.first_position,
      .decode_step = job.decode_step,
      .layer = queries.layer,
      .head = kv_head,
      .settings = &policy.settings(),
      .budget_tokens = policy.BudgetTokens(queries.layer, kv_head, job.num_tokens()),
      .q = queries.q + job.row_begin * queries.q_stride + queries.HeadOffset(head),
      .group = queries.spec->group(),
      .head_dim = queries.spec->head_dim,
      .scale = queries.spec->scale,
      .softcap = queries.spec->softcap,
      .index = queries.indexes->ViewOf(job.sequence, queries.layer, kv_head),
  };
  policy.algorithm().Select(select, workspace, out);
  queries.use->Record(job_idx, head, out->CountAttended());
}

}  // namespace spindle::sparse
