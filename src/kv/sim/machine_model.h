// A machine in numbers, for simulations on a virtual clock: what a step costs to compute, what a
// copy costs over the link from host to fast tier. Thread-safety: value types and pure functions.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace spindle::kv::sim {

// Time of a step without data movement: base + per decode row + per prefill token.
struct ComputeModel {
  Duration step_base = std::chrono::microseconds(2000);
  Duration decode_row = std::chrono::microseconds(1500);
  Duration prefill_token = std::chrono::microseconds(150);

  [[nodiscard]] Duration StepTime(uint64_t decode_rows, uint64_t prefill_tokens) const {
    return step_base + decode_row * static_cast<int64_t>(decode_rows) +
           prefill_token * static_cast<int64_t>(prefill_tokens);
  }
};

struct LinkModel {
  double bytes_per_second = 25e9;
  Duration latency = std::chrono::microseconds(3);  // of each copy command

  [[nodiscard]] Duration CopyTime(uint64_t commands, uint64_t bytes) const {
    return latency * static_cast<int64_t>(commands) +
           Duration(static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_second * 1e9));
  }
};

// Time of a step whose layers compute for equal times and need equal copies first, one after the
// other over the link. The copy of a layer starts when the layer `prefetch_depth` before it starts
// to compute (its pages are foretold by then), that of the first layers with the step; at depth 0
// when the layer before it is done, so that nothing overlaps. A layer is one piece: copying behind
// its projections or while its first spans are attended is not modelled. REQUIRES: num_layers ≥ 1.
[[nodiscard]] Duration PipelinedStepTime(Duration compute,
                                         Duration copy,
                                         uint32_t num_layers,
                                         uint32_t prefetch_depth);

}  // namespace spindle::kv::sim
