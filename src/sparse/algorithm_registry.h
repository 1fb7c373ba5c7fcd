// The attention algorithms of this build, by name.
// Thread-safety: thread-safe; the algorithms live as long as the process.
#pragma once

#include <string_view>

#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

// Null when no algorithm has this name.
[[nodiscard]] const SparseAlgorithm* FindAlgorithm(std::string_view name);

}  // namespace spindle::sparse
