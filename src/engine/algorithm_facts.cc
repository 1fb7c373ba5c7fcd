#include "engine/algorithm_facts.h"

#include <iterator>
#include <memory>

#include "sparse/algorithm_registry.h"
#include "sparse/prefill_registry.h"

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

std::vector<PrefillFacts> PrefillFactsOf() {
  std::vector<PrefillFacts> all;
  for (const std::shared_ptr<const sparse::PrefillMethod>& method : sparse::PrefillMethods()) {
    all.push_back({.name = method->name(), .knobs = method->knobs()});
  }
  return all;
}

std::vector<std::string_view> KnownPrefills() {
  std::vector<std::string_view> names = {"dense"};
  for (const PrefillFacts& method : PrefillFactsOf()) {
    names.push_back(method.name);
  }
  return names;
}

std::vector<std::string_view> KnownAlgorithms() {
  std::vector<std::string_view> names;
  for (const std::shared_ptr<const sparse::SparseAlgorithm>& algorithm : sparse::Algorithms()) {
    names.push_back(algorithm->name());
  }
  names.insert(names.end(),
               std::begin(sparse::kAlgorithmsWithWeights),
               std::end(sparse::kAlgorithmsWithWeights));
  return names;
}

}  // namespace spindle::engine
