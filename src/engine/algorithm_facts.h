// What a model's attention algorithms and the methods of sparse prefill are, for those who list and
// accept them: taken from themselves. Thread-safety: thread-safe.
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

// A method of sparse prefill; any of them goes with any algorithm.
struct PrefillFacts {
  std::string_view name;
  std::span<const sparse::Knob> knobs;
};

// Views into the methods.
[[nodiscard]] std::vector<PrefillFacts> PrefillFactsOf();

// Names of `prefill`: "dense", then the methods.
[[nodiscard]] std::vector<std::string_view> KnownPrefills();

// Names that requests and options may use: the algorithms of the build, "dense" first, then those
// that need weights of their own.
[[nodiscard]] std::vector<std::string_view> KnownAlgorithms();

}  // namespace spindle::engine
