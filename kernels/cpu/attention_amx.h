// Attention over bf16 KV in AMX tiles. Thread-safety: pure functions over the caller's memory.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// Runs one unit of a plan. REQUIRES: kv_type kBF16. Leaves the tile registers released.
int RunTileUnit(const AttentionArgs& args,
                const AttentionPlan& plan,
                const AttentionUnit& unit,
                const Exec& exec);

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
