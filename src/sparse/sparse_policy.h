// How the generated tokens of a request are attended: an algorithm with the request's settings.
// Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/ids.h"
#include "sparse/sparse_algorithm.h"
#include "sparse/sparse_settings.h"

namespace spindle::sparse {

class SparsePolicy {
 public:
  // The algorithm is shared with the registry and with other requests. REQUIRES: not null.
  SparsePolicy(std::shared_ptr<const SparseAlgorithm> algorithm, SparseSettings settings)
      : algorithm_(std::move(algorithm)), settings_(std::move(settings)) {}

  [[nodiscard]] const SparseAlgorithm& algorithm() const { return *algorithm_; }

  [[nodiscard]] const SparseSettings& settings() const { return settings_; }

  // A row with so much context attends to all of it, in every layer.
  [[nodiscard]] bool IsDenseAt(uint32_t num_tokens) const {
    return num_tokens < settings_.min_context;
  }

  [[nodiscard]] bool IsDenseLayer(LayerIdx layer) const {
    return layer.value() < settings_.dense_layers.size() && settings_.dense_layers[layer.value()];
  }

  // The position whose choice a row at `position` uses, which is not dense; `decode_begin`: the
  // first generated token. A function of positions alone, and never before the row's stripe:
  // what is computed again from a stripe on chooses as it did at first.
  [[nodiscard]] uint32_t AnchorOf(uint32_t position, uint32_t decode_begin) const;

  // Tokens to select for a row with so much context.
  [[nodiscard]] uint32_t BudgetTokens(LayerIdx layer, KvHeadIdx head, uint32_t num_tokens) const;

 private:
  const std::shared_ptr<const SparseAlgorithm> algorithm_;
  const SparseSettings settings_;
};

}  // namespace spindle::sparse
