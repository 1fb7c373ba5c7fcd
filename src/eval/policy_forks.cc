#include "eval/policy_forks.h"

#include "base/status_macros.h"

namespace spindle::eval {
absl::StatusOr<ForkGroup> ForkPolicies(EvalModel& model,
                                       std::span<const EvalPolicy* const> policies,
                                       std::span<const TokenId> context,
                                       std::span<sparse::PrefillUse> uses) {
  ContextGroup contexts(model);
  SPINDLE_ASSIGN_OR_RETURN(const SequenceId dense, contexts.Add(context));
  std::vector<SequenceId> parents;
  for (size_t p = 0; p < policies.size(); ++p) {
    SequenceId parent = dense;
    if (const sparse::PrefillPolicy* const prefill = policies[p]->prefill.get();
        prefill != nullptr) {
      SPINDLE_ASSIGN_OR_RETURN(parent,
                               contexts.Add(context, prefill, uses.empty() ? nullptr : &uses[p]));
    }
    parents.push_back(parent);
  }
  return ForkGroup::Create(model, parents);
}

}  // namespace spindle::eval
