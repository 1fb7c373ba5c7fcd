// Counts what the choices of a step attend to, and what share of the attention mass that is by
// their estimates; tells the sequences at the end of the step. Thread-safety: engine-thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "sparse/selection.h"
#include "sparse/step_jobs.h"

namespace spindle::sparse {

class StepUse {
 public:
  void BeginStep(const StepJobs& jobs, uint32_t num_kv_heads);

  // Of the layer in progress: what one KV head attends to.
  void Record(size_t job, const Selection& choice) {
    Add(job, choice.CountAttended(), double{choice.mass});
    jobs_use_[job].estimated_tokens += choice.estimated_tokens;
  }

  // All `tokens` of the context are, since the estimate of the layer was too small.
  void RecordFallback(size_t job, uint32_t tokens) {
    Add(job, tokens, 1);
    jobs_use_[job].fell_back = true;
  }

  // The layer is one that chooses.
  void EndLayer(LayerIdx layer);

  // Adds to the use of every sequence that has one.
  void EndStep();

 private:
  // Of one job, over heads and, but for what is said to be of the layer in progress, over layers.
  struct JobUse {
    uint64_t tokens = 0;
    uint64_t layer_tokens = 0;
    uint64_t estimated_tokens = 0;
    double mass = 0;
    double layer_mass = 0;
    uint32_t num_layers = 0;  // sparse ones so far
    bool fell_back = false;
  };

  // With so much mass; NaN: not known.
  void Add(size_t job, uint32_t tokens, double mass) {
    jobs_use_[job].layer_tokens += tokens;
    jobs_use_[job].layer_mass += mass;
  }

  const StepJobs* jobs_ = nullptr;
  uint32_t num_kv_heads_ = 0;
  std::vector<JobUse> jobs_use_;
};

}  // namespace spindle::sparse
