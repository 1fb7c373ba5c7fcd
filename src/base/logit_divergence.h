// How far one distribution of the next token is from another, both as logits over the vocabulary.
// Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace spindle {

// ln Σ exp(logit). REQUIRES: logits.
[[nodiscard]] inline double LogSumExp(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - largest);
  }
  return largest + std::log(sum);
}

// Σ p ln(p / q) in nats; the second numbers are their LogSumExp. A token that p rules out adds
// nothing. REQUIRES: equal sizes.
[[nodiscard]] inline double KlDivergence(std::span<const float> p,
                                         double p_log_sum,
                                         std::span<const float> q,
                                         double q_log_sum) {
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double logit = p[i];
    const double probability = std::exp(logit - p_log_sum);
    if (probability > 0) {
      kl += probability * (logit - q[i] + (q_log_sum - p_log_sum));
    }
  }
  return std::max(kl, 0.0);  // rounding may leave -1e-17
}

}  // namespace spindle
