// Counts what the choices of a step attend to. Workers record one (job, KV head) of the layer in
// progress each; the engine thread adds layers up and, at the end of the step, tells the sequences.
// Thread-safety: as described.
#pragma once

#include <cstdint>
#include <vector>

#include "sparse/step_jobs.h"

namespace spindle::sparse {

class StepUse {
 public:
  void BeginStep(const StepJobs& jobs, uint32_t num_kv_heads);

  // A worker: `tokens` live ones were chosen.
  void Record(size_t job, uint32_t head, uint32_t tokens) {
    attended_[job * num_kv_heads_ + head] = tokens;
  }

  void EndLayer(LayerIdx layer);

  // Adds to the use of every sequence that has one.
  void EndStep();

 private:
  const StepJobs* jobs_ = nullptr;
  uint32_t num_kv_heads_ = 0;
  std::vector<uint32_t> attended_;    // [jobs][KV heads] of the layer in progress
  std::vector<uint64_t> sums_;        // [jobs] over layers and heads
  std::vector<uint32_t> num_layers_;  // [jobs] sparse ones so far
};

}  // namespace spindle::sparse
