// The kernel tables of this build. Whether this CPU may run one is the registry's question.
// Thread-safety: constants.
#pragma once

#include "kernels/registry.h"

namespace spindle::kernels {

extern const KernelTable kReferenceTable;
extern const KernelTable kBaselineTable;
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
extern const KernelTable kAmxTable;

}  // namespace spindle::kernels
