#include "sparse/step_use.h"

#include <algorithm>

namespace spindle::sparse {

void StepUse::BeginStep(const StepJobs& jobs, uint32_t num_kv_heads) {
  jobs_ = &jobs;
  num_kv_heads_ = num_kv_heads;
  attended_.assign(jobs.jobs().size() * num_kv_heads, 0);
  sums_.assign(jobs.jobs().size(), 0);
  num_layers_.assign(jobs.jobs().size(), 0);
}

void StepUse::EndLayer(LayerIdx layer) {
  if (jobs_->num_sparse_jobs() == 0) {
    return;
  }
  for (size_t i = 0; i < jobs_->jobs().size(); ++i) {
    if (jobs_->jobs()[i].IsDense(layer)) {
      continue;
    }
    ++num_layers_[i];
    for (uint32_t head = 0; head < num_kv_heads_; ++head) {
      sums_[i] += attended_[i * num_kv_heads_ + head];
    }
  }
}

void StepUse::EndStep() {
  for (const StepSequence& sequence : jobs_->sequences()) {
    const SequenceRows& rows = sequence.rows;
    if (rows.use == nullptr || rows.policy == nullptr) {
      continue;
    }
    for (uint32_t i = sequence.job_begin; i < sequence.job_end; ++i) {
      const StepJob& job = jobs_->jobs()[i];
      if (num_layers_[i] > 0) {
        const auto num_choices = static_cast<double>(num_layers_[i]) * num_kv_heads_;
        rows.use->AddSparseRow(static_cast<double>(sums_[i]) / (num_choices * job.num_tokens()));
      } else if (job.num_tokens() > rows.decode_begin) {
        rows.use->AddDenseRows(job.num_tokens() - std::max(job.first_position, rows.decode_begin));
      }
    }
  }
}

}  // namespace spindle::sparse
