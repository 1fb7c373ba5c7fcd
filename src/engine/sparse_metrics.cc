#include "engine/sparse_metrics.h"

#include <algorithm>
#include <memory>
#include <string>

#include "sparse/algorithm_registry.h"

namespace spindle::engine {

SparseMetrics::SparseMetrics(metrics::Registry& registry) {
  for (const std::shared_ptr<const sparse::SparseAlgorithm>& algorithm : sparse::Algorithms()) {
    const std::string name(algorithm->name());
    const auto steps = [&](const char* kind) {
      return registry.AddCounter("spindle_sparse_steps_total",
                                 "Decoded rows under an algorithm, by whether it chose.",
                                 {{"algorithm", name}, {"kind", kind}});
    };
    series_.push_back({.algorithm = algorithm->name(),
                       .sparse_steps = steps("sparse"),
                       .dense_steps = steps("dense"),
                       .attended_fraction = registry.AddHistogram(
                           "spindle_sparse_attended_fraction",
                           "Share of the context that a row attended to, over its sparse layers.",
                           {0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1},
                           {{"algorithm", name}})});
  }
}

void SparseMetrics::ObserveRow(std::string_view algorithm, const sparse::DecodeUse& use) const {
  const auto it = std::ranges::find(series_, algorithm, &Series::algorithm);
  if (it == series_.end()) {
    return;  // one that is not offered: replayed selections
  }
  if (use.last_share > 0) {
    it->sparse_steps.Add(1);
    it->attended_fraction.Observe(use.last_share);
  } else {
    it->dense_steps.Add(1);
  }
}

}  // namespace spindle::engine
