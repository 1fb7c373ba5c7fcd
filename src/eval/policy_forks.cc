#include "eval/policy_forks.h"

#include "base/status_macros.h"

namespace spindle::eval {
namespace {

// Sequences of contexts, closed when their forks are there.
class Contexts {
 public:
  explicit Contexts(EvalModel& model) : model_(model) {}

  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;

  ~Contexts() {
    for (const SequenceId sequence : sequences_) {
      model_.Close(sequence);
    }
  }

  absl::StatusOr<SequenceId> Add(std::span<const TokenId> context,
                                 const sparse::PrefillPolicy* prefill,
                                 sparse::PrefillUse* use) {
    SPINDLE_ASSIGN_OR_RETURN(const SequenceId sequence, model_.Prefill(context, prefill, use));
    sequences_.push_back(sequence);
    return sequence;
  }

 private:
  EvalModel& model_;
  std::vector<SequenceId> sequences_;
};

}  // namespace

absl::StatusOr<ForkGroup> ForkPolicies(EvalModel& model,
                                       std::span<const EvalPolicy* const> policies,
                                       std::span<const TokenId> context,
                                       std::span<sparse::PrefillUse> uses) {
  Contexts contexts(model);
  SPINDLE_ASSIGN_OR_RETURN(const SequenceId dense, contexts.Add(context, nullptr, nullptr));
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
