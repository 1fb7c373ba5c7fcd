// Plain-loop attention in double precision, the oracle of the tests: q is rounded as the API says,
// probabilities are not. Span states are fp32, so splits give the same bits here too.
// Thread-safety: pure functions over the caller's memory.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"

namespace spindle::kernels::reference {

// Contracts: KernelTable.
int Attention(const AttentionArgs& args, const AttentionPlan& plan, WorkRange units, Exec* exec);
int MergeAttention(const AttentionArgs& args,
                   const AttentionPlan& plan,
                   WorkRange items,
                   Exec* exec);

}  // namespace spindle::kernels::reference
