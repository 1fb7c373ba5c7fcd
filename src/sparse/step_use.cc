#include "sparse/step_use.h"

#include <algorithm>
#include <utility>

namespace spindle::sparse {

void StepUse::BeginStep(const StepJobs& jobs, uint32_t num_kv_heads) {
  jobs_ = &jobs;
  num_kv_heads_ = num_kv_heads;
  jobs_use_.assign(jobs.jobs().size(), JobUse());
}

void StepUse::EndLayer(LayerIdx layer) {
  if (jobs_->num_sparse_jobs() == 0) {
    return;
  }
  for (size_t i = 0; i < jobs_->jobs().size(); ++i) {
    const StepJob& job = jobs_->jobs()[i];
    if (job.IsDense(layer)) {
      continue;
    }
    JobUse& use = jobs_use_[i];
    const std::span<LayerUse> layers = jobs_->sequences()[job.sequence].rows.layers;
    if (job.prefill == nullptr && !layers.empty()) {
      const double num_tokens = static_cast<double>(num_kv_heads_) * job.num_tokens();
      layers[layer.value()].AddRow(static_cast<double>(use.layer_tokens) / num_tokens,
                                   use.layer_mass / num_kv_heads_);
    }
    ++use.num_layers;
    use.tokens += std::exchange(use.layer_tokens, 0);
    use.mass += std::exchange(use.layer_mass, 0);
  }
}

void StepUse::EndStep() {
  for (const StepSequence& sequence : jobs_->sequences()) {
    const SequenceRows& rows = sequence.rows;
    for (uint32_t i = sequence.job_begin; i < sequence.job_end; ++i) {
      const StepJob& job = jobs_->jobs()[i];
      const JobUse& use = jobs_use_[i];
      const auto num_choices = static_cast<double>(use.num_layers) * num_kv_heads_;
      const double num_tokens = num_choices * job.num_tokens();
      if (job.prefill != nullptr) {
        if (rows.prefill_use != nullptr && use.num_layers > 0) {
          rows.prefill_use->AddBlock(static_cast<double>(use.tokens) / num_tokens);
        }
      } else if (rows.use == nullptr || rows.policy == nullptr) {
        continue;
      } else if (use.num_layers > 0) {
        rows.use->AddSparseRow(static_cast<double>(use.tokens) / num_tokens,
                               static_cast<double>(use.estimated_tokens) / num_tokens,
                               use.mass / num_choices,
                               use.fell_back);
      } else if (job.num_tokens() > rows.decode_begin) {
        rows.use->AddDenseRows(job.num_tokens() - std::max(job.first_position, rows.decode_begin));
      }
    }
  }
}

}  // namespace spindle::sparse
