#include "eval/logit_metrics.h"

#include <algorithm>
#include <cmath>

#include "base/logit_divergence.h"
#include "base/status_macros.h"

namespace spindle::eval {

LogitRow ReadLogits(std::span<const float> logits) {
  SPINDLE_CHECK(logits.size() >= kTopTokens);
  LogitRow row{.logits = logits};
  row.log_sum_exp = LogSumExp(logits);

  const auto is_better = [logits](TokenId a, TokenId b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  uint32_t found = 0;
  for (TokenId id = 0; id < static_cast<TokenId>(logits.size()); ++id) {
    if (found == kTopTokens && !is_better(id, row.top.back())) {
      continue;
    }
    uint32_t at = found == kTopTokens ? kTopTokens - 1 : found++;
    for (; at > 0 && is_better(id, row.top[at - 1]); --at) {
      row.top[at] = row.top[at - 1];
    }
    row.top[at] = id;
  }
  return row;
}

double NegativeLogLikelihood(const LogitRow& row, TokenId token) {
  return row.log_sum_exp - row.logits[static_cast<size_t>(token)];
}

StepScores CompareLogits(const LogitRow& dense, const LogitRow& row, TokenId reference) {
  SPINDLE_CHECK(dense.logits.size() == row.logits.size());
  StepScores scores;
  scores.kl = KlDivergence(dense.logits, dense.log_sum_exp, row.logits, row.log_sum_exp);
  scores.dense_nll = NegativeLogLikelihood(dense, reference);
  scores.nll = NegativeLogLikelihood(row, reference);
  scores.probability_change = std::exp(-scores.nll) - std::exp(-scores.dense_nll);
  scores.same_top = dense.top.front() == row.top.front();
  for (const TokenId id : dense.top) {
    scores.top_overlap += std::count(row.top.begin(), row.top.end(), id) > 0 ? 1.0 : 0.0;
  }
  scores.top_overlap /= kTopTokens;
  return scores;
}

}  // namespace spindle::eval
