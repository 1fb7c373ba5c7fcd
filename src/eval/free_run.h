// Free decoding: every policy goes on greedily by its own tokens. Shows when texts part and whether
// a policy repeats itself more than dense attention does. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "eval/eval_model.h"
#include "eval/forced_run.h"
#include "eval/policies.h"
#include "eval/texts.h"

namespace spindle::eval {

// Of one policy, per window.
struct FreeScores {
  std::vector<double> divergence = {};       // first step with another token than dense; all: steps
  std::vector<double> distinct_3grams = {};  // different ones ÷ all
  std::vector<double> longest_repeat = {};   // tokens of the longest span that occurs twice
};

struct FreeResult {
  uint32_t context_tokens = 0;
  uint32_t num_steps = 0;
  std::vector<FreeScores> policies = {};  // as the policies of the run
};

// policies[0] is dense. Windows hold at least context_tokens tokens. ERRORS: those of EvalModel.
[[nodiscard]] absl::StatusOr<FreeResult> RunFree(EvalModel& model,
                                                 std::span<const EvalPolicy* const> policies,
                                                 std::span<const TextWindow> windows,
                                                 uint32_t context_tokens,
                                                 uint32_t num_steps,
                                                 const RunProgress& progress);

// 1 for fewer than three tokens.
[[nodiscard]] double DistinctTrigrams(std::span<const TokenId> tokens);

// The occurrences may overlap, as those of a loop do. Cost: O(n²).
[[nodiscard]] uint32_t LongestRepeat(std::span<const TokenId> tokens);

}  // namespace spindle::eval
