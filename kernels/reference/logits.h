// Plain-loop logits kernels, the oracle of the tests.
// Thread-safety: pure functions over the caller's memory.
#pragma once

#include <cstdint>

#include "kernels/api/logits.h"

namespace spindle::kernels::reference {

// Contracts: KernelTable.
LogitSummary Summarize(const float* logits, uint32_t n);
uint32_t TopK(const float* logits, uint32_t n, uint32_t k, ScoredToken* out, ScoredToken* scratch);
uint32_t CollectAtLeast(const float* logits, uint32_t n, float threshold, ScoredToken* out);

}  // namespace spindle::kernels::reference
