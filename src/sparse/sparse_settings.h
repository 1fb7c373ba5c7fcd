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
  // > 0: partitions are selected until the estimate of attention mass reaches this share for every
  // query head; the budget is the most. Needs an algorithm with an estimate, as the next two.
  double top_p_mass = 0;
  double min_mass = 0;          // > 0: a layer with a smaller estimate is attended densely
  bool estimates_mass = false;  // also where nothing depends on it
  // Rows choose anew every so many positions, and at the beginning of a stripe; between them the
  // last choice holds, with the tokens that have come since.
  uint32_t reselect_interval = 1;
  std::vector<double> knobs = {};  // of the algorithm, in its order; those beyond: its presets
  // Ranks also where the budget covers every partition, which changes nothing: for tests.
  bool always_ranks = false;

  [[nodiscard]] bool NeedsMass() const { return top_p_mass > 0 || min_mass > 0 || estimates_mass; }
};

}  // namespace spindle::sparse
