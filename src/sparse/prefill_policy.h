// How the prompt of a request is attended: a method of sparse prefill with the request's settings.
// Which rows are sparse follows from positions and the length of the prompt alone, so that chunks,
// a hit in the prefix cache and a preemption change nothing. Thread-safety: immutable.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/ids.h"
#include "sparse/prefill_method.h"

namespace spindle::sparse {

class PrefillPolicy {
 public:
  // The method is shared with the registry and with other requests. `knobs`: its values, checked by
  // it. `dense_layers`: [layer]; those beyond are sparse. REQUIRES: method not null.
  PrefillPolicy(std::shared_ptr<const PrefillMethod> method,
                std::vector<double> knobs,
                std::vector<bool> dense_layers = {});

  // With presets but for what is named. ERRORS: those of KnobValues and of the method; messages
  // begin with prefill_params.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<const PrefillPolicy>> Create(
      std::shared_ptr<const PrefillMethod> method,
      const NamedValues& named,
      std::vector<bool> dense_layers = {});

  [[nodiscard]] const PrefillMethod& method() const { return *method_; }

  [[nodiscard]] std::span<const double> knobs() const { return knobs_; }

  // Whatever decides its choices, as a key.
  [[nodiscard]] const Digest& fingerprint() const { return fingerprint_; }

  [[nodiscard]] bool IsDenseLayer(LayerIdx layer) const {
    return layer.value() < dense_layers_.size() && dense_layers_[layer.value()];
  }

  // Positions [SparseBegin(), SparseEnd(prompt_tokens)) of a prompt are computed sparsely: whole
  // blocks, in which every row has the choice of its block. Those before attend to everything by
  // the method's rule, those behind to everything since they are among the last of the prompt, or
  // in a block with one of these. Nothing is sparse where the second is not larger.
  [[nodiscard]] uint32_t SparseBegin() const { return sparse_begin_; }

  [[nodiscard]] uint32_t SparseEnd(uint32_t prompt_tokens) const {
    const uint32_t end = prompt_tokens - std::min(prompt_tokens, last_dense_);
    return end / kPrefillBlockTokens * kPrefillBlockTokens;
  }

 private:
  const std::shared_ptr<const PrefillMethod> method_;
  const std::vector<double> knobs_;
  const std::vector<bool> dense_layers_;
  const uint32_t sparse_begin_;
  const uint32_t last_dense_;
  Digest fingerprint_{};
};

}  // namespace spindle::sparse
