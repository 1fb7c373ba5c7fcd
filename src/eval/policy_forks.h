// Forks of one context, one for each policy of a run. Thread-safety: one thread.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "eval/eval_model.h"
#include "eval/policies.h"

namespace spindle::eval {

// Sequences that hold `context`: forks of one that is computed densely, and for policies of sparse
// prefill of one of their own. `uses`: [policies] adds what those attended to; may be empty.
// Borrows the model. ERRORS: those of EvalModel.
[[nodiscard]] absl::StatusOr<ForkGroup> ForkPolicies(EvalModel& model,
                                                     std::span<const EvalPolicy* const> policies,
                                                     std::span<const TokenId> context,
                                                     std::span<sparse::PrefillUse> uses = {});

}  // namespace spindle::eval
