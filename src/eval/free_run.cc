#include "eval/free_run.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/status_macros.h"
#include "eval/logit_metrics.h"
#include "eval/policy_forks.h"

namespace spindle::eval {
namespace {

using Answers = std::vector<std::vector<TokenId>>;

absl::StatusOr<Answers> Continue(EvalModel& model,
                                 std::span<const EvalPolicy* const> policies,
                                 std::span<const TokenId> context,
                                 uint32_t num_steps,
                                 const RunProgress& progress) {
  SPINDLE_ASSIGN_OR_RETURN(const ForkGroup group,
                           ForkPolicies(model, policies, context.first(context.size() - 1)));
  const size_t vocab = model.config().vocab_size;
  Answers answers(policies.size());
  std::vector<TokenId> next(policies.size(), context.back());
  std::vector<Continuation> step(policies.size());
  for (uint32_t i = 0; i < num_steps; ++i) {
    for (size_t p = 0; p < policies.size(); ++p) {
      step[p] = {group.forks()[p], {&next[p], 1}, policies[p]->policy.get()};
    }
    SPINDLE_ASSIGN_OR_RETURN(const std::span<const float> logits, model.Append(step));
    for (size_t p = 0; p < policies.size(); ++p) {
      next[p] = ReadLogits(logits.subspan(p * vocab, vocab)).top.front();
      answers[p].push_back(next[p]);
    }
    progress((i + 1.0) / num_steps);
  }
  return answers;
}

}  // namespace

absl::StatusOr<FreeResult> RunFree(EvalModel& model,
                                   std::span<const EvalPolicy* const> policies,
                                   std::span<const TextWindow> windows,
                                   uint32_t context_tokens,
                                   uint32_t num_steps,
                                   const RunProgress& progress) {
  SPINDLE_CHECK(!policies.empty() && policies.front()->role == PolicyRole::kDense);
  FreeResult result{.context_tokens = context_tokens, .num_steps = num_steps};
  result.policies.resize(policies.size());
  for (size_t w = 0; w < windows.size(); ++w) {
    const std::span<const TokenId> context = windows[w].tokens;
    SPINDLE_ASSIGN_OR_RETURN(
        const Answers answers,
        Continue(model, policies, context.first(context_tokens), num_steps, [&](double fraction) {
          progress((static_cast<double>(w) + fraction) / static_cast<double>(windows.size()));
        }));
    for (size_t p = 0; p < policies.size(); ++p) {
      const auto parts =
          std::mismatch(answers[p].begin(), answers[p].end(), answers.front().begin());
      FreeScores& scores = result.policies[p];
      scores.divergence.push_back(static_cast<double>(parts.first - answers[p].begin()));
      scores.distinct_3grams.push_back(DistinctTrigrams(answers[p]));
      scores.longest_repeat.push_back(LongestRepeat(answers[p]));
    }
  }
  return result;
}

double DistinctTrigrams(std::span<const TokenId> tokens) {
  if (tokens.size() < 3) {
    return 1;
  }
  std::set<std::array<TokenId, 3>> distinct;
  for (size_t i = 0; i + 2 < tokens.size(); ++i) {
    distinct.insert({tokens[i], tokens[i + 1], tokens[i + 2]});
  }
  return static_cast<double>(distinct.size()) / static_cast<double>(tokens.size() - 2);
}

uint32_t LongestRepeat(std::span<const TokenId> tokens) {
  // lengths[j]: of the longest equal spans that end at i and at j, for the present i < j.
  std::vector<uint32_t> lengths(tokens.size(), 0);
  uint32_t longest = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (size_t j = tokens.size() - 1; j > i; --j) {
      lengths[j] = tokens[i] != tokens[j] ? 0 : 1 + (i > 0 ? lengths[j - 1] : 0);
      longest = std::max(longest, lengths[j]);
    }
  }
  return longest;
}

}  // namespace spindle::eval
