// Forced decoding: one text, prefilled densely or as a policy says, goes on under every policy with
// the same next tokens, and every step compares the policy's distribution with the dense one.
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eval/eval_model.h"
#include "eval/logit_metrics.h"
#include "eval/policies.h"
#include "eval/selection_probe.h"
#include "eval/texts.h"

namespace spindle::eval {

// Of one policy.
struct ForcedScores {
  std::vector<std::vector<StepScores>> windows = {};  // [window][step]
  SelectionRecord selections;
  sparse::PrefillUse prefill = {};  // of the contexts of all windows
};

struct ForcedResult {
  uint32_t context_tokens = 0;
  uint32_t num_steps = 0;
  std::vector<ForcedScores> policies = {};  // as the policies of the run
};

// Called with the fraction done in [0, 1].
using RunProgress = std::function<void(double)>;

// Windows hold at least context_tokens + num_steps tokens each.
//   policies  the first is dense; records of probes are attached for the time of the run
// ERRORS: those of EvalModel.
[[nodiscard]] absl::StatusOr<ForcedResult> RunForced(EvalModel& model,
                                                     std::span<const EvalPolicy> policies,
                                                     std::span<const TextWindow> windows,
                                                     uint32_t context_tokens,
                                                     uint32_t num_steps,
                                                     const RunProgress& progress);

// Whether an algorithm that selects everything is dense attention, and whether company in a step
// changes a bit.
struct ExactnessResult {
  std::string algorithm;
  bool full_budget_equals_dense = false;  // every logit of every step, bit by bit
  double full_budget_error = 0;           // largest |difference| ÷ |dense| of a step's logits
  bool alone_equals_batched = false;      // at the smallest budget
  uint32_t num_steps = 0;
};

// Over the first window. ERRORS: those of EvalModel.
[[nodiscard]] absl::StatusOr<std::vector<ExactnessResult>> CheckExactness(
    EvalModel& model,
    std::span<const EvalPolicy> policies,
    const TextWindow& window,
    uint32_t context_tokens,
    uint32_t num_steps);

}  // namespace spindle::eval
