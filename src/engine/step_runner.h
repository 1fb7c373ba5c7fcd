// The forward pass as the engine sees it: rows of token ids in, rows of logits out. Implemented by
// ModelRunner over model and sparse, and by a deterministic fake in tests.
// Thread-safety: engine-thread only; config() and fingerprint() from any thread.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "model/model.h"
#include "sparse/indexed_tokens.h"
#include "sparse/mirror_attention.h"

namespace spindle::engine {

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  [[nodiscard]] virtual const model::ModelConfig& config() const = 0;
  // Decides which KV may be shared; see model::Model::fingerprint.
  [[nodiscard]] virtual const Digest& fingerprint() const = 0;

  // Called once before the first Forward. ERRORS: kResourceExhausted.
  [[nodiscard]] virtual absl::Status Reserve(uint32_t max_rows, uint32_t max_logit_rows) = 0;

  // Computes the KV of all rows and the logits [logit_rows][vocab_size] of the wanted ones, valid
  // until the next call. Per row the result depends on the tokens of its sequence up to that row
  // only: the scheduler relies on it for bit-identical recompute.
  [[nodiscard]] virtual absl::StatusOr<std::span<const float>> Forward(
      const model::StepInput& input) = 0;

  // What Forward found in the fast tier and copied to it; zeros without one.
  [[nodiscard]] virtual sparse::MirrorCounters fast_counters() const { return {}; }

  // What Forward has indexed for sparse attention; valid until the next call.
  [[nodiscard]] virtual std::span<const sparse::IndexedTokens> indexed_tokens() const { return {}; }
};

}  // namespace spindle::engine
