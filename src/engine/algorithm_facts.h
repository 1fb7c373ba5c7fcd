// What a model's attention algorithms are, for those who list and accept them: taken from the
// algorithms themselves. Thread-safety: thread-safe.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "sparse/algorithm_set.h"

namespace spindle::engine {

struct AlgorithmFacts {
  std::string_view name;
  std::string_view partition;  // empty: positions
  std::span<const sparse::Knob> knobs;
  bool mass_estimate;
  bool extra_weights;
};

// In the order of the set, "dense" first. Views into the algorithms.
[[nodiscard]] std::vector<AlgorithmFacts> FactsOf(const sparse::AlgorithmSet& algorithms);

// Names that requests and options may use: the algorithms of the build, "dense" first, then those
// that need weights of their own.
[[nodiscard]] std::vector<std::string_view> KnownAlgorithms();

}  // namespace spindle::engine
