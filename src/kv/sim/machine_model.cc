#include "kv/sim/machine_model.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace spindle::kv::sim {

Duration PipelinedStepTime(Duration compute,
                           Duration copy,
                           uint32_t num_layers,
                           uint32_t prefetch_depth) {
  if (prefetch_depth == 0) {
    return compute + copy;
  }
  const double layer_compute = static_cast<double>(compute.count()) / num_layers;
  const double layer_copy = static_cast<double>(copy.count()) / num_layers;
  std::vector<double> compute_start(num_layers);
  double copy_end = 0;
  double compute_end = 0;
  for (uint32_t layer = 0; layer < num_layers; ++layer) {
    const double foretold = layer < prefetch_depth ? 0 : compute_start[layer - prefetch_depth];
    copy_end = std::max(copy_end, foretold) + layer_copy;
    compute_start[layer] = std::max(compute_end, copy_end);
    compute_end = compute_start[layer] + layer_compute;
  }
  return Duration(static_cast<int64_t>(std::llround(compute_end)));
}

}  // namespace spindle::kv::sim
