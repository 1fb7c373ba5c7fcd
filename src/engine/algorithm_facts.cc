#include "engine/algorithm_facts.h"

#include <memory>

namespace spindle::engine {

std::vector<AlgorithmFacts> FactsOf(const sparse::AlgorithmSet& algorithms) {
  std::vector<AlgorithmFacts> all;
  for (const std::shared_ptr<const sparse::SparseAlgorithm>& algorithm : algorithms.all()) {
    all.push_back({.name = algorithm->name(),
                   .partition = algorithm->partition(),
                   .knobs = algorithm->knobs(),
                   .mass_estimate = algorithm->mass_estimate(),
                   .extra_weights = algorithm->weight_bytes() > 0});
  }
  return all;
}

}  // namespace spindle::engine
