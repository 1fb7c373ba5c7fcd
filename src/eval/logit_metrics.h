// How far the next-token distribution under sparse attention is from the dense one, at one
// position. Formulas: KL = Σ p ln(p / q) over the whole vocabulary in nats; NLL = -ln of the
// reference token's probability; the names mean what llama.cpp's perplexity tool means by them.
// Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/ids.h"

namespace spindle::eval {

inline constexpr uint32_t kTopTokens = 5;

// What is needed of a row of logits more than once.
struct LogitRow {
  std::span<const float> logits;  // [vocab], borrowed
  double log_sum_exp = 0;
  std::array<TokenId, kTopTokens> top = {};  // descending; equal ones by id
};

// REQUIRES: at least kTopTokens logits.
[[nodiscard]] LogitRow ReadLogits(std::span<const float> logits);

[[nodiscard]] double NegativeLogLikelihood(const LogitRow& row, TokenId token);

struct StepScores {
  double kl = 0;         // of the compared row from the dense one
  double dense_nll = 0;  // of the reference token
  double nll = 0;
  double probability_change = 0;  // of the reference token
  bool same_top = false;
  double top_overlap = 0;  // share of the kTopTokens best that both have
};

// REQUIRES: equal vocabularies.
[[nodiscard]] StepScores CompareLogits(const LogitRow& dense,
                                       const LogitRow& row,
                                       TokenId reference);

}  // namespace spindle::eval
