// Chooses tokens from rows of logits. Order of operations: bias and bans (allowed ids, stop ids
// before min_tokens) → repetition, frequency and presence penalties → temperature → top-k → top-p →
// min-p → draw. Greedy takes the arg-max after the penalties. The draw is the inverse of the
// cumulative distribution over the kept tokens in (logit descending, id ascending) order, at
// Philox(seed, choice, position). Engine-thread only. Borrows the kernels. Allocates in the
// constructor only; no full sort: the sorted prefix grows until it holds the mass that is needed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "kernels/registry.h"
#include "sampling/sampler_state.h"

namespace spindle::sampling {

struct ScoredLogprob {
  TokenId token;
  float logprob;
};

// A token with its natural-log probability; `top` in falling logprob order, ties by id, without the
// token unless it is among them. `top` is valid until the next call on the sampler.
struct Scored {
  TokenId token = -1;
  float logprob = 0.0F;
  std::span<const ScoredLogprob> top;
};

class Sampler {
 public:
  // `max_alternatives` bounds the alternatives of a scored token.
  Sampler(const kernels::KernelTable& kernels, uint32_t vocab_size, uint32_t max_alternatives);

  // Chooses the token at `position` (index in the sequence). The logprob and the alternatives are
  // filled when the parameters ask for them. Does not call Accept.
  //   logits   [vocab_size]
  //   ERRORS: kInvalidArgument (bias and bans leave no token), kInternal (no number among the
  //           logits)
  [[nodiscard]] absl::StatusOr<Scored> Sample(const SamplerState& state,
                                              uint64_t position,
                                              std::span<const float> logits);

  // Log-probability of a given token under raw logits (prompt tokens).
  [[nodiscard]] Scored Score(std::span<const float> logits,
                             TokenId token,
                             uint32_t num_alternatives);

 private:
  // The logits after bias, bans and penalties: the caller's row, or edited_.
  std::span<const float> Edit(const SamplerState& state, std::span<const float> logits);
  void ApplyBans(const SamplerState& state, std::span<const float> logits);
  void ApplyPenalties(const SamplerState& state);
  // (logit - max) / temperature, in scaled_.
  std::span<const float> Scale(std::span<const float> row, float max, float temperature);
  TokenId Draw(const SamplingParams& params, double uniform, std::span<const float> row, float max);
  // Sorted candidates of a row: the `count` largest.
  std::span<const kernels::ScoredToken> Largest(std::span<const float> row, uint32_t count);

  const kernels::KernelTable* kernels_;
  std::vector<float> edited_;                     // [vocab]
  std::vector<float> scaled_;                     // [vocab]
  std::vector<kernels::ScoredToken> candidates_;  // [vocab]
  std::vector<kernels::ScoredToken> scratch_;     // [vocab]
  std::vector<ScoredLogprob> top_;                // [max_alternatives]
};

}  // namespace spindle::sampling
