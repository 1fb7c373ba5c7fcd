// Dense attention as an ordinary algorithm: every position is selected. The oracle for all others.
// Thread-safety: stateless.
#pragma once

#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

class DenseAlgorithm final : public SparseAlgorithm {
 public:
  [[nodiscard]] std::string_view name() const override { return "dense"; }

  [[nodiscard]] bool is_uniform() const override { return true; }

  [[nodiscard]] uint32_t Select(const SelectJob& job, std::span<TileLive> out) const override;
};

}  // namespace spindle::sparse
