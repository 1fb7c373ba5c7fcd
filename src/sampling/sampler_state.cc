#include "sampling/sampler_state.h"

#include <algorithm>

namespace spindle::sampling {

SamplerState::SamplerState(const SamplingParams& params,
                           std::span<const TokenId> end_tokens,
                           uint32_t choice,
                           std::span<const TokenId> prompt,
                           uint32_t vocab_size)
    : params_(&params),
      end_tokens_(params.ignore_eos ? std::span<const TokenId>{} : end_tokens),
      choice_(choice),
      penalties_(params.presence_penalty != 0.0F || params.frequency_penalty != 0.0F ||
                 params.repetition_penalty != 1.0F) {
  if (penalties_) {
    counts_.Reserve(std::min<size_t>(vocab_size, prompt.size() + params.max_tokens));
    for (const TokenId token : prompt) {
      counts_.AddPrompt(token);
    }
  }
}

void SamplerState::Accept(TokenId token) {
  ++num_generated_;
  if (penalties_) {
    counts_.AddGenerated(token);
  }
}

bool SamplerState::IsStop(TokenId token) const {
  return std::ranges::find(end_tokens_, token) != end_tokens_.end() ||
         std::ranges::find(params_->stop_token_ids, token) != params_->stop_token_ids.end();
}

}  // namespace spindle::sampling
