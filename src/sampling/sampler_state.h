// What the sampling of one choice depends on besides the logits: its parameters, its number, and
// what it has seen. Borrows the parameters and the end tokens, which must outlive it.
// Thread-safety: thread-compatible. Allocates in the constructor only.
#pragma once

#include <cstdint>
#include <span>

#include "spindle/sampling_params.h"

#include "base/ids.h"
#include "sampling/token_counts.h"

namespace spindle::sampling {

class SamplerState {
 public:
  // `end_tokens`: the model's; banned like stop ids before `min_tokens`, unless `ignore_eos`.
  // `vocab_size` bounds the memory of the penalties.
  SamplerState(const SamplingParams& params,
               std::span<const TokenId> end_tokens,
               uint32_t choice,
               std::span<const TokenId> prompt,
               uint32_t vocab_size);

  // Counts a sampled token. Cost O(1).
  void Accept(TokenId token);

  // An end token (unless ignored) or a stop id.
  [[nodiscard]] bool IsStop(TokenId token) const;

  [[nodiscard]] const SamplingParams& params() const { return *params_; }

  [[nodiscard]] std::span<const TokenId> end_tokens() const { return end_tokens_; }

  [[nodiscard]] uint32_t choice() const { return choice_; }

  [[nodiscard]] uint32_t num_generated() const { return num_generated_; }

  // Empty unless a penalty is on.
  [[nodiscard]] std::span<const TokenCounts::Entry> counts() const { return counts_.entries(); }

  // Stop ids may not be sampled yet.
  [[nodiscard]] bool StopsBanned() const { return num_generated_ < params_->min_tokens; }

  // The logits must be changed before a token is chosen.
  [[nodiscard]] bool EditsLogits() const {
    return StopsBanned() || penalties_ || !params_->logit_bias.empty() ||
           !params_->allowed_token_ids.empty();
  }

 private:
  const SamplingParams* params_;
  std::span<const TokenId> end_tokens_;
  uint32_t choice_;
  bool penalties_;
  uint32_t num_generated_ = 0;
  TokenCounts counts_;
};

}  // namespace spindle::sampling
