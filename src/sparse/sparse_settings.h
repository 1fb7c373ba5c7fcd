// What a request may set about sparse attention, whatever the algorithm. Thread-safety: value type.
#pragma once

#include <cstdint>
#include <vector>

namespace spindle::sparse {

// Tokens that are always attended come on top of the budget: sink, recent ones, and the tail that
// has no index yet.
struct SparseSettings {
  uint32_t budget_tokens = 2048;  // selected per layer and KV head; whole partitions, rounded up
  double budget_fraction = 0;     // > 0: that share of the context instead
  uint32_t sink_tokens = 4;       // the first ones
  uint32_t recent_tokens = 64;    // the last ones, the row's own included
  uint32_t min_context = 4096;    // rows with fewer tokens of context are attended densely
  std::vector<bool> dense_layers = {};        // [layer]; those beyond are sparse
  std::vector<float> layer_multipliers = {};  // [layer] of the budget; those beyond: 1
  std::vector<float> head_multipliers = {};   // [KV head] of the budget; those beyond: 1
  // Ranks also where the budget covers every partition, which changes nothing: for tests.
  bool always_ranks = false;
};

}  // namespace spindle::sparse
