// How the next token is chosen; one value per request, shared by its choices.
// Thread-safety: plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace spindle {

struct SamplingParams {
  float temperature = 1.0F;         // [0, 2]; 0 = greedy, ties go to the lowest token id
  float top_p = 1.0F;               // [0, 1]; 0 keeps only the most likely token
  int32_t top_k = 0;                // ≤ 0 = off
  float min_p = 0.0F;               // [0, 1]
  float presence_penalty = 0.0F;    // [-2, 2], over generated tokens
  float frequency_penalty = 0.0F;   // [-2, 2], over generated tokens
  float repetition_penalty = 1.0F;  // (0, 10], over prompt and generated tokens
  uint64_t seed = 0;  // resolved by serving; choice j draws from Philox(seed, j, position)
  // (token id, bias in [-100, 100]); -100 bans the token. Ids are distinct and inside the
  // vocabulary.
  std::vector<std::pair<int32_t, float>> logit_bias;
  // Only these may be sampled, ascending; empty = all.
  std::vector<int32_t> allowed_token_ids;

  uint32_t num_choices = 1;  // n, [1, 128]
  uint32_t max_tokens = 16;  // sampled tokens per choice; 0 = none (scoring only)
  uint32_t min_tokens = 0;   // end-of-sequence and stop ids are banned before
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // in addition to the model's end tokens

  // Number of most likely alternatives to report per sampled token; nullopt = no log-probabilities
  // at all.
  std::optional<uint32_t> logprobs;
  bool logprobs_processed = false;  // after bias, penalties and temperature instead of raw
  std::optional<uint32_t>
      prompt_logprobs;  // alternatives per prompt token; bypasses prefix-cache reuse
};

}  // namespace spindle
