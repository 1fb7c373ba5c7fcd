// What this build's attention algorithms are, for those who list and accept them: taken from the
// algorithms themselves. Thread-safety: thread-safe.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "sparse/sparse_algorithm.h"

namespace spindle::engine {

struct AlgorithmFacts {
  std::string_view name;
  std::string_view partition;  // empty: positions
  std::span<const sparse::Knob> knobs;
  bool mass_estimate;
  bool extra_weights;
};

// "dense" first. The same list at every call.
[[nodiscard]] const std::vector<AlgorithmFacts>& OfferedAlgorithms();

}  // namespace spindle::engine
