#include "eval/forced_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/status_macros.h"
#include "eval/policy_forks.h"

namespace spindle::eval {
namespace {

// Attaches the records of a run to the probes while it lives.
class AttachedRecords {
 public:
  AttachedRecords(std::span<const EvalPolicy> policies, std::vector<ForcedScores>& scores)
      : policies_(policies) {
    for (size_t i = 0; i < policies.size(); ++i) {
      if (policies[i].probe != nullptr) {
        policies[i].probe->Attach(policies[i].policy->settings(), &scores[i].selections);
      }
    }
  }

  AttachedRecords(const AttachedRecords&) = delete;
  AttachedRecords& operator=(const AttachedRecords&) = delete;

  ~AttachedRecords() {
    for (const EvalPolicy& policy : policies_) {
      if (policy.probe != nullptr) {
        policy.probe->Attach(policy.policy->settings(), nullptr);
      }
    }
  }

 private:
  const std::span<const EvalPolicy> policies_;
};

absl::Status RunWindow(EvalModel& model,
                       std::span<const EvalPolicy> policies,
                       const TextWindow& window,
                       ForcedResult& result,
                       const RunProgress& progress) {
  const std::span<const TokenId> tokens = window.tokens;
  // The last token of the context is the first one that is decoded.
  std::vector<const EvalPolicy*> pointers;
  for (const EvalPolicy& policy : policies) {
    pointers.push_back(&policy);
  }
  std::vector<sparse::PrefillUse> uses(policies.size());
  SPINDLE_ASSIGN_OR_RETURN(
      const ForkGroup group,
      ForkPolicies(model, pointers, tokens.first(result.context_tokens - 1), uses));
  for (size_t p = 0; p < policies.size(); ++p) {
    result.policies[p].prefill += uses[p];
  }
  for (ForcedScores& scores : result.policies) {
    scores.selections.BeginSequence();
    scores.windows.emplace_back();
  }
  const size_t vocab = model.config().vocab_size;
  std::vector<Continuation> step(policies.size());
  for (uint32_t i = 0; i < result.num_steps; ++i) {
    const size_t at = result.context_tokens - 1 + i;
    for (size_t p = 0; p < policies.size(); ++p) {
      step[p] = {group.forks()[p], tokens.subspan(at, 1), policies[p].policy.get()};
    }
    SPINDLE_ASSIGN_OR_RETURN(const std::span<const float> logits, model.Append(step));
    const LogitRow dense = ReadLogits(logits.first(vocab));
    for (size_t p = 0; p < policies.size(); ++p) {
      result.policies[p].windows.back().push_back(
          CompareLogits(dense, ReadLogits(logits.subspan(p * vocab, vocab)), tokens[at + 1]));
    }
    progress((i + 1.0) / result.num_steps);
  }
  return absl::OkStatus();
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

double RelativeError(std::span<const float> dense, std::span<const float> other) {
  double squares = 0;
  double error = 0;
  for (size_t i = 0; i < dense.size(); ++i) {
    squares += double{dense[i]} * dense[i];
    error += (double{other[i]} - dense[i]) * (double{other[i]} - dense[i]);
  }
  return std::sqrt(error / squares);
}

// Policies of the algorithm, the one with the smallest budget first.
const EvalPolicy* SmallestBudget(std::span<const EvalPolicy> policies, const std::string& name) {
  const EvalPolicy* smallest = nullptr;
  for (const EvalPolicy& policy : policies) {
    if (policy.role == PolicyRole::kAlgorithm && policy.algorithm == name &&
        (smallest == nullptr || policy.budget < smallest->budget)) {
      smallest = &policy;
    }
  }
  return smallest;
}

absl::StatusOr<ExactnessResult> CheckAlgorithm(EvalModel& model,
                                               SequenceId prompt,
                                               const EvalPolicy& smallest,
                                               std::span<const TokenId> tokens) {
  const EvalPolicy full = MakeFullPolicy(smallest);
  SPINDLE_ASSIGN_OR_RETURN(const ForkGroup group, ForkGroup::Create(model, prompt, 4));
  ExactnessResult result{.algorithm = smallest.algorithm,
                         .full_budget_equals_dense = true,
                         .alone_equals_batched = true,
                         .num_steps = static_cast<uint32_t>(tokens.size())};
  const size_t vocab = model.config().vocab_size;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::span<const TokenId> token = tokens.subspan(i, 1);
    const Continuation batch[] = {{group.forks()[0], token, nullptr},
                                  {group.forks()[1], token, full.policy.get()},
                                  {group.forks()[2], token, smallest.policy.get()}};
    SPINDLE_ASSIGN_OR_RETURN(const std::span<const float> logits, model.Append(batch));
    const std::vector<float> together(logits.begin() + static_cast<ptrdiff_t>(2 * vocab),
                                      logits.end());
    result.full_budget_equals_dense &= SameBits(logits.first(vocab), logits.subspan(vocab, vocab));
    result.full_budget_error = std::max(
        result.full_budget_error, RelativeError(logits.first(vocab), logits.subspan(vocab, vocab)));
    const Continuation alone[] = {{group.forks()[3], token, smallest.policy.get()}};
    SPINDLE_ASSIGN_OR_RETURN(const std::span<const float> single, model.Append(alone));
    result.alone_equals_batched &= SameBits(together, single);
  }
  return result;
}

}  // namespace

absl::StatusOr<ForcedResult> RunForced(EvalModel& model,
                                       std::span<const EvalPolicy> policies,
                                       std::span<const TextWindow> windows,
                                       uint32_t context_tokens,
                                       uint32_t num_steps,
                                       const RunProgress& progress) {
  SPINDLE_CHECK(!policies.empty() && policies.front().role == PolicyRole::kDense);
  ForcedResult result{.context_tokens = context_tokens, .num_steps = num_steps};
  const model::ModelConfig& config = model.config();
  for (size_t i = 0; i < policies.size(); ++i) {
    result.policies.push_back(
        {.windows = {}, .selections = SelectionRecord(config.num_layers, config.num_kv_heads)});
  }
  const AttachedRecords attached(policies, result.policies);
  for (size_t i = 0; i < windows.size(); ++i) {
    SPINDLE_CHECK(windows[i].tokens.size() > size_t{context_tokens} + num_steps - 1);
    SPINDLE_RETURN_IF_ERROR(RunWindow(model, policies, windows[i], result, [&](double fraction) {
      progress((static_cast<double>(i) + fraction) / static_cast<double>(windows.size()));
    }));
  }
  return result;
}

absl::StatusOr<std::vector<ExactnessResult>> CheckExactness(EvalModel& model,
                                                            std::span<const EvalPolicy> policies,
                                                            const TextWindow& window,
                                                            uint32_t context_tokens,
                                                            uint32_t num_steps) {
  std::set<std::string> names;
  for (const EvalPolicy& policy : policies) {
    if (policy.role == PolicyRole::kAlgorithm) {
      names.insert(policy.algorithm);
    }
  }
  const std::span<const TokenId> tokens = window.tokens;
  SPINDLE_ASSIGN_OR_RETURN(const SequenceId prompt,
                           model.Prefill(tokens.first(context_tokens - 1)));
  std::vector<ExactnessResult> results;
  absl::Status status = absl::OkStatus();
  for (const std::string& name : names) {
    absl::StatusOr<ExactnessResult> result =
        CheckAlgorithm(model,
                       prompt,
                       *SmallestBudget(policies, name),
                       tokens.subspan(context_tokens - 1, num_steps));
    if (!result.ok()) {
      status = result.status();
      break;
    }
    results.push_back(*std::move(result));
  }
  model.Close(prompt);
  SPINDLE_RETURN_IF_ERROR(status);
  return results;
}

}  // namespace spindle::eval
