#include "engine/sparse_metrics.h"

#include <algorithm>
#include <memory>
#include <string>

#include "sparse/prefill_registry.h"

namespace spindle::engine {

SparseMetrics::SparseMetrics(metrics::Registry& registry, const sparse::AlgorithmSet& algorithms) {
  for (const std::shared_ptr<const sparse::SparseAlgorithm>& algorithm : algorithms.all()) {
    const std::string name(algorithm->name());
    const auto steps = [&](const char* kind) {
      return registry.AddCounter("spindle_sparse_steps_total",
                                 "Decoded rows under an algorithm: it chose, it was not asked, or "
                                 "some layer fell back to all of the context.",
                                 {{"algorithm", name}, {"kind", kind}});
    };
    series_.push_back(
        {.algorithm = algorithm->name(),
         .sparse_steps = steps("sparse"),
         .dense_steps = steps("dense"),
         .fallback_steps = steps("fallback"),
         .attended_fraction = registry.AddHistogram(
             "spindle_sparse_attended_fraction",
             "Share of the context that a row attended to, over its sparse layers.",
             {0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1},
             {{"algorithm", name}}),
         .est_mass =
             registry.AddHistogram("spindle_sparse_est_mass",
                                   "Share of the attention mass on what a row attended to, by the "
                                   "algorithm's estimate, where it was made.",
                                   {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1},
                                   {{"algorithm", name}}),
         .audit_divergence =
             registry.AddHistogram("spindle_sparse_audit_divergence",
                                   "Divergence of audited rows from dense attention: KL in nats.",
                                   {1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10},
                                   {{"algorithm", name}}),
         .indexed_tokens = {.counter = registry.AddCounter(
                                "spindle_sparse_indexed_tokens_total",
                                "Tokens whose keys were put into an index; shared ones once.",
                                {{"algorithm", name}})}});
  }
  for (const std::shared_ptr<const sparse::PrefillMethod>& method : sparse::PrefillMethods()) {
    const std::string name(method->name());
    prefill_series_.push_back(
        {.method = method->name(),
         .blocks = registry.AddCounter("spindle_sparse_prefill_blocks_total",
                                       "Blocks of 128 prompt tokens that were computed sparsely.",
                                       {{"method", name}}),
         .attended_fraction = registry.AddHistogram(
             "spindle_sparse_prefill_attended_fraction",
             "Share of the tokens up to a sparse block that it attended to: mean of a sequence.",
             {0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1},
             {{"method", name}})});
  }
}

void SparseMetrics::ObservePrefill(std::string_view method, const sparse::PrefillUse& use) const {
  const auto it = std::ranges::find(prefill_series_, method, &PrefillSeries::method);
  if (it != prefill_series_.end()) {
    it->blocks.Add(use.sparse_blocks);
    it->attended_fraction.Observe(use.MeanShare());
  }
}

const SparseMetrics::Series* SparseMetrics::Find(std::string_view algorithm) const {
  const auto it = std::ranges::find(series_, algorithm, &Series::algorithm);
  return it == series_.end() ? nullptr : &*it;
}

void SparseMetrics::ObserveAudit(std::string_view algorithm, double kl) const {
  if (const Series* const series = Find(algorithm); series != nullptr) {
    series->audit_divergence.Observe(kl);
  }
}

void SparseMetrics::PublishIndexed(std::span<const sparse::IndexedTokens> totals) {
  for (const sparse::IndexedTokens& total : totals) {
    const auto it = std::ranges::find(series_, total.algorithm, &Series::algorithm);
    if (it != series_.end()) {
      it->indexed_tokens.Follow(total.tokens);
    }
  }
}

void SparseMetrics::ObserveRow(std::string_view algorithm, const sparse::DecodeUse& use) const {
  const Series* const it = Find(algorithm);
  if (it == nullptr) {
    return;
  }
  if (use.last_share > 0) {
    (use.last_fell_back ? it->fallback_steps : it->sparse_steps).Add(1);
    it->attended_fraction.Observe(use.last_share);
    if (use.last_mass > 0) {
      it->est_mass.Observe(use.last_mass);
    }
  } else {
    it->dense_steps.Add(1);
  }
}

}  // namespace spindle::engine
