// The exact weight of positions that a row attends to in any case, beside which estimates of the
// others are put. Thread-safety: one worker.
#pragma once

#include <span>

#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

// lse[i] = ln Σ exp(score) over the live positions of `tiles`, for each query head of the job; -inf
// without any. Scores as attention computes them. REQUIRES: job.keys, workspace.exec; room for
// job.group numbers.
void ExactLse(const SelectJob& job,
              std::span<const TileLive> tiles,
              SelectWorkspace& workspace,
              std::span<float> lse);

}  // namespace spindle::sparse
