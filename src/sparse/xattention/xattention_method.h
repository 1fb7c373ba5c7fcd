// XAttention (arXiv 2503.16428): a block of rows attends to the blocks of keys that hold
// `threshold` of its attention mass, by an estimate along the antidiagonals of stride × stride
// tiles (kernels/api/block_mass.h), largest first, and to the first and its own block in any case.
//
// The heads of a group share a list of keys. By default each head chooses for itself and the group
// attends to the union, so that every head has its share of mass; with `share_group` the group
// chooses once, by the mean of its heads' masses. Thread-safety: stateless.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparse/prefill_method.h"

namespace spindle::sparse {

class XAttentionMethod final : public PrefillMethod {
 public:
  [[nodiscard]] std::string_view name() const override { return "xattention"; }

  [[nodiscard]] std::span<const Knob> knobs() const override;

  [[nodiscard]] absl::Status CheckKnobs(std::span<const double> values) const override;

  [[nodiscard]] uint32_t FirstSparseBlock(std::span<const double> values) const override;

  [[nodiscard]] uint32_t LastDense(std::span<const double> values) const override;

  [[nodiscard]] int Select(const PrefillJob& job,
                           SelectWorkspace& workspace,
                           std::span<uint64_t> chosen) const override;
};

// Adds to `chosen` (as in PrefillMethod::Select) the blocks that one mass[num_blocks] asks for:
// block 0 and the last one, then others, mass descending and id ascending, until those chosen here
// hold threshold · total; all of them where a mass is no number. `order` is a buffer.
void ChooseByMass(std::span<const float> mass,
                  double threshold,
                  std::vector<uint32_t>* order,
                  std::span<uint64_t> chosen);

}  // namespace spindle::sparse
