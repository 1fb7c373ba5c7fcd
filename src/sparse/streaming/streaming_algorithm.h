// StreamingLLM (arXiv 2309.17453) as a rule of visibility: the first tokens and the last ones, at
// their true positions. The token budget widens the window of recent tokens, so that the whole
// budget is spent and a budget that covers the context is dense attention. Has no index; what lies
// between is not seen, but not lost either. Thread-safety: stateless.
#pragma once

#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

class StreamingAlgorithm final : public SparseAlgorithm {
 public:
  [[nodiscard]] std::string_view name() const override { return "streaming"; }

  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& /*geometry*/) const override {
    return 0;
  }

  void Select(const SelectJob& job, SelectWorkspace& workspace, Selection* out) const override;
};

}  // namespace spindle::sparse
