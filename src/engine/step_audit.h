// What sparse attention costs in accuracy, measured: rows of generated tokens that are computed
// densely as well, over the same KV, before they are computed as their request wants. The real pass
// overwrites whatever the other has appended, so an answer and its KV are those without an audit.
// Thread-safety: engine-thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/audit_use.h"
#include "engine/step_batch.h"
#include "engine/step_runner.h"

namespace spindle::engine {

// Of two rows of logits over one vocabulary: the first is the standard.
struct Divergence {
  double kl = 0;  // Σ p ln(p / q) of their distributions at temperature 1, in nats
  double max_logit_diff = 0;
  bool same_top = false;  // the first of the largest
};

[[nodiscard]] Divergence Compare(std::span<const float> dense, std::span<const float> sparse);

class StepAudit {
 public:
  // Takes the batch's rows whose turn it is. REQUIRES: before the batch is run.
  void Plan(const StepBatch& batch);

  [[nodiscard]] bool empty() const { return entries_.empty(); }

  // The dense pass. ERRORS: those of the runner.
  [[nodiscard]] absl::Status Run(StepRunner& runner);

  // The row of batch entry `entry` in the real pass; nothing to do where it was not audited.
  // Returns whether it was.
  [[nodiscard]] bool Observe(size_t entry, std::span<const float> logits, Divergence* out);

 private:
  std::vector<size_t> entries_;  // of the batch, ascending
  std::vector<TokenId> tokens_;
  std::vector<sparse::SequenceRows> sequences_;
  std::vector<uint32_t> logit_rows_;
  std::vector<float> logits_;  // [audited rows][vocabulary]
  size_t next_ = 0;            // of entries_
};

}  // namespace spindle::engine
