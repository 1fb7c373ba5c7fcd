// The kernel tables of this build. Whether this CPU may run one is the registry's question.
// Thread-safety: constants.
#pragma once

#include "kernels/registry.h"

namespace spindle::kernels {

// The table, or null where the build leaves it out (kernels/CMakeLists.txt).
const KernelTable* BuiltTable(Isa isa);

}  // namespace spindle::kernels
