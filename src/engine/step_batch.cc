#include "engine/step_batch.h"

#include <algorithm>

namespace spindle::engine {

void StepBatch::Add(Choice& choice, uint32_t num_rows, uint32_t first_prompt_logit) {
  const uint32_t row_begin = this->num_rows();
  const uint32_t position_begin = choice.committed;
  const uint32_t position_end = position_begin + num_rows;
  const bool completes = num_rows == choice.pending();
  const auto first_logit = static_cast<uint32_t>(logit_rows_.size());
  const auto rows = std::span(choice.history).subspan(position_begin, num_rows);
  tokens_.insert(tokens_.end(), rows.begin(), rows.end());
  sequences_.push_back({.sequence = choice.sequence,
                        .row_begin = row_begin,
                        .num_rows = num_rows,
                        .first_position = position_begin,
                        .policy = choice.request->spec.decode->policy.get(),
                        .decode_begin = choice.request->prompt_size(),
                        .prefill = choice.request->spec.decode->prefill.get(),
                        .cache_set = choice.fast.set,
                        .kept = &choice.kept,
                        .use = &choice.use,
                        .prefill_use = &choice.prefill_use,
                        .layers = choice.layers});
  // The row of prompt position p scores token p + 1, so the prompt's last row scores none.
  const uint32_t last_scoring = choice.request->prompt_size() - 1;
  for (uint32_t position = std::max(position_begin, first_prompt_logit);
       position < std::min(position_end, last_scoring);
       ++position) {
    logit_rows_.push_back(row_begin + position - position_begin);
  }
  if (completes && choice.request->spec.sampling.max_tokens > 0) {
    logit_rows_.push_back(row_begin + num_rows - 1);
  }
  entries_.push_back({&choice,
                      num_rows,
                      first_logit,
                      static_cast<uint32_t>(logit_rows_.size()) - first_logit,
                      completes});
  if (choice.in_prefill) {
    num_prefill_rows_ += num_rows;
  }
}

}  // namespace spindle::engine
