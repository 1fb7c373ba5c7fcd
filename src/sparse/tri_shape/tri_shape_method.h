// Tri-shape (TriangleMix; the sink-and-window mode of OpenVINO GenAI's sparse prefill): every row
// attends to the first tokens and to the last ones before it, rounded out to blocks, and the last
// rows of the prompt to everything. Depends on positions alone, so it reads no keys to choose.
// Thread-safety: stateless.
#pragma once

#include "sparse/prefill_method.h"

namespace spindle::sparse {

class TriShapeMethod final : public PrefillMethod {
 public:
  [[nodiscard]] std::string_view name() const override { return "tri_shape"; }

  [[nodiscard]] std::span<const Knob> knobs() const override;

  [[nodiscard]] uint32_t FirstSparseBlock(std::span<const double> values) const override;

  [[nodiscard]] uint32_t LastDense(std::span<const double> values) const override;

  [[nodiscard]] int Select(const PrefillJob& job,
                           SelectWorkspace& workspace,
                           std::span<uint64_t> chosen) const override;
};

}  // namespace spindle::sparse
