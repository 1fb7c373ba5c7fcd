// What audited rows of a request have shown. Thread-safety: value type.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spindle::engine {

struct AuditUse {
  uint32_t steps = 0;
  uint32_t same_top = 0;  // steps whose likeliest token was that of dense attention
  double kl_sum = 0;      // of dense against sparse, in nats
  double max_logit_diff = 0;

  void Add(double kl, double logit_diff, bool has_same_top) {
    ++steps;
    same_top += has_same_top ? 1U : 0U;
    kl_sum += kl;
    max_logit_diff = std::max(max_logit_diff, logit_diff);
  }

  AuditUse& operator+=(const AuditUse& other) {
    steps += other.steps;
    same_top += other.same_top;
    kl_sum += other.kl_sum;
    max_logit_diff = std::max(max_logit_diff, other.max_logit_diff);
    return *this;
  }
};

}  // namespace spindle::engine
