// The choice of one job for one layer and KV head, whoever attends to it afterwards.
// Thread-safety: any worker, with a workspace of its own.
#pragma once

#include "sparse/layer_attention.h"
#include "sparse/select_workspace.h"
#include "sparse/step_jobs.h"

namespace spindle::sparse {

// Overwrites `out` with what job `job_idx` attends to: everything in dense layers, else what the
// policy's algorithm selects, which is counted. Allocates only where `out` has no capacity for the
// context.
void ChooseTiles(const StepJobs& jobs,
                 size_t job_idx,
                 const LayerQueries& queries,
                 uint32_t head,
                 SelectWorkspace& workspace,
                 Selection* out);

}  // namespace spindle::sparse
