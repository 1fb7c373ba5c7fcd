// How long steps of decoding take, densely and under a policy, over the length of the context; and
// from which length on the policy is worth its choice. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "eval/eval_model.h"
#include "eval/texts.h"
#include "sparse/sparse_policy.h"

namespace spindle::eval {

struct StepTimesOptions {
  std::vector<uint32_t> contexts = {};  // tokens, ascending
  uint32_t num_steps = 32;              // timed, of each round
  uint32_t num_rounds = 5;              // in which dense and the policy take turns
};

// At one context.
struct StepTimes {
  uint32_t context_tokens = 0;
  double dense_seconds = 0;   // of a step, median over rounds
  double policy_seconds = 0;  // the same
  double speedup = 0;  // dense ÷ policy, median over rounds: both halves of a round meet the
                       // same machine
};

// As many sequences decode together as there are windows, each with a context of its own; windows
// hold at least the longest context, kWarmUpSteps and the steps of a round. ERRORS: those of
// EvalModel.
inline constexpr uint32_t kWarmUpSteps = 2;
[[nodiscard]] absl::StatusOr<std::vector<StepTimes>> TimeSteps(
    EvalModel& model,
    const sparse::SparsePolicy& policy,
    std::span<const TextWindow> windows,
    const StepTimesOptions& options,
    const Clock& clock,
    const std::function<void(double)>& progress);

// The context from which on the policy is never slower than dense, between two measured ones by a
// straight line; nullopt: at the longest it still is. REQUIRES: at least one, ascending.
[[nodiscard]] std::optional<uint32_t> Crossover(std::span<const StepTimes> times);

}  // namespace spindle::eval
