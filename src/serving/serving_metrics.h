// The metric families that serving owns; all exist, with zero values, from construction.
// Thread-safety: thread-safe.
#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "metrics/metrics.h"
#include "serving/api_error.h"

namespace spindle::serving {

class ServingMetrics {
 public:
  explicit ServingMetrics(metrics::Registry& registry);

  // Counted under its code when that is one of capacity and state, else under "invalid_request".
  void Rejected(const ApiError& error) const;
  void IgnoredFields(size_t count) const;
  void FirstToken(Duration since_received) const;
  void NextToken(Duration since_previous) const;
  // Of one choice: from its first to its last token, over the tokens after the first.
  void TimePerOutputToken(Duration mean) const;
  void RequestEnded(Duration since_received) const;

 private:
  metrics::Histogram time_to_first_token_;
  metrics::Histogram inter_token_latency_;
  metrics::Histogram time_per_output_token_;
  metrics::Histogram e2e_latency_;
  std::map<std::string, metrics::Counter> rejected_;  // by reason; fixed after construction
  metrics::Counter ignored_fields_;
};

}  // namespace spindle::serving
