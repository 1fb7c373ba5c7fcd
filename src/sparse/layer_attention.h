// Attention of one layer over the KV of a step's sequences, wherever its pages are: what the modes
// of the store implement, each giving the same bits. Thread-safety: engine-thread only.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "base/ids.h"
#include "sparse/step_choices.h"
#include "sparse/step_jobs.h"
#include "tensor/attention_spec.h"

namespace spindle::sparse {

// Rotated queries, what they attend to and where results go. Row-major fp32. The rows' K and V are
// in the store.
struct LayerQueries {
  LayerIdx layer;
  const tensor::AttentionSpec* spec;
  const float* q;  // [num_rows][q_stride]
  size_t q_stride;
  float* out;  // [num_rows][out_stride]: num_q_heads × head_dim
  size_t out_stride;
  StepChoices* choices;  // of this layer

  // Of a row's query heads that share a KV head: floats from the row's first.
  [[nodiscard]] size_t HeadOffset(uint32_t kv_head) const {
    return size_t{kv_head} * spec->group() * spec->head_dim;
  }
};

class LayerAttention {
 public:
  virtual ~LayerAttention() = default;

  // The jobs of the coming layers; borrowed until the next call.
  virtual void BeginStep(const StepJobs& jobs) = 0;

  // ERRORS: those of kernels.
  [[nodiscard]] virtual absl::Status Attend(const LayerQueries& queries) = 0;
};

}  // namespace spindle::sparse
