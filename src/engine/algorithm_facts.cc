#include "engine/algorithm_facts.h"

#include <memory>

#include "sparse/algorithm_registry.h"

namespace spindle::engine {

const std::vector<AlgorithmFacts>& OfferedAlgorithms() {
  static const std::vector<AlgorithmFacts> facts = [] {
    std::vector<AlgorithmFacts> all;
    for (const std::shared_ptr<const sparse::SparseAlgorithm>& algorithm : sparse::Algorithms()) {
      all.push_back({.name = algorithm->name(),
                     .partition = algorithm->partition(),
                     .knobs = algorithm->knobs(),
                     .mass_estimate = algorithm->mass_estimate(),
                     .extra_weights = algorithm->extra_weights()});
    }
    return all;
  }();
  return facts;
}

}  // namespace spindle::engine
