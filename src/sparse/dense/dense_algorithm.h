// Dense attention as an ordinary algorithm: every position is selected. The oracle for all others.
// Requests for dense attention have no policy at all, which gives the same bits at less cost.
// Thread-safety: stateless.
#pragma once

#include <vector>

#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

// All positions of [0, num_tokens).
void AppendAllTiles(uint32_t num_tokens, std::vector<TileLive>* out);

class DenseAlgorithm final : public SparseAlgorithm {
 public:
  [[nodiscard]] std::string_view name() const override { return "dense"; }

  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& /*geometry*/) const override {
    return 0;
  }

  void Select(const SelectJob& job, SelectWorkspace& /*workspace*/, Selection* out) const override {
    AppendAllTiles(job.num_tokens(), &out->tiles);
    out->mass = 1;
  }
};

}  // namespace spindle::sparse
