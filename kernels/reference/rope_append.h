// Plain-loop K4 in double precision, the oracle of the tests.
// Thread-safety: pure functions over the caller's memory.
#pragma once

#include "kernels/api/exec.h"
#include "kernels/api/rope_append.h"

namespace spindle::kernels::reference {

// Contract: KernelTable.
int RopeAppend(const RopeAppendArgs& args, WorkRange rows, Exec* exec);

}  // namespace spindle::kernels::reference
