// The metric families of sparse attention: what rows of generated tokens attended to, by algorithm,
// and what blocks of prompts did, by method.
// All series exist, at zero, from the start. Thread-safety: thread-safe, PublishIndexed by one
// thread. Borrows the registry.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/kv_metrics.h"
#include "metrics/metrics.h"
#include "sparse/algorithm_set.h"
#include "sparse/decode_use.h"
#include "sparse/indexed_tokens.h"
#include "sparse/prefill_use.h"

namespace spindle::engine {

class SparseMetrics {
 public:
  SparseMetrics(metrics::Registry& registry, const sparse::AlgorithmSet& algorithms);

  // A sequence under `algorithm` has decoded a row; `use` as it is now.
  void ObserveRow(std::string_view algorithm, const sparse::DecodeUse& use) const;

  // A sequence whose prompt was attended by `method` ends, with sparse blocks.
  void ObservePrefill(std::string_view method, const sparse::PrefillUse& use) const;

  // A row under `algorithm` was computed densely as well; `kl` in nats.
  void ObserveAudit(std::string_view algorithm, double kl) const;

  // At the end of a step: totals since the start.
  void PublishIndexed(std::span<const sparse::IndexedTokens> totals);

 private:
  struct Series {
    std::string_view algorithm;
    metrics::Counter sparse_steps;
    metrics::Counter dense_steps;
    metrics::Counter fallback_steps;
    metrics::Histogram attended_fraction;
    metrics::Histogram est_mass;
    metrics::Histogram audit_divergence;
    FollowingCounter indexed_tokens;
  };

  struct PrefillSeries {
    std::string_view method;
    metrics::Counter blocks;
    metrics::Histogram attended_fraction;
  };

  // Null for one that is not offered: replayed selections.
  [[nodiscard]] const Series* Find(std::string_view algorithm) const;

  std::vector<Series> series_;
  std::vector<PrefillSeries> prefill_series_;
};

}  // namespace spindle::engine
