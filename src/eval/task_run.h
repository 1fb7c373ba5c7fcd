// Runs retrieval tasks: the context is computed densely, the question and the answer are decoded
// under each policy, as in a later turn of a conversation. So nothing of the answer is carried over
// by rows that saw everything. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eval/eval_model.h"
#include "eval/forced_run.h"
#include "eval/policies.h"
#include "eval/task_families.h"
#include "text/tokenizer.h"

namespace spindle::eval {

struct SampleScore {
  double nll = 0;             // of the gold answer, forced, nats per token
  double token_accuracy = 0;  // share of its tokens that were the most likely ones
  double string_score = 0;    // of a greedy answer
};

// One family at one length.
struct TaskCell {
  std::string family;
  uint32_t context_tokens = 0;
  std::vector<double> control_nll;                 // [sample] dense, without what is asked for
  std::vector<std::vector<SampleScore>> policies;  // [policy][sample]

  [[nodiscard]] double MeanNll(size_t policy) const;
  [[nodiscard]] double MeanControlNll() const;
  [[nodiscard]] double MeanString(size_t policy) const;

  // (control - policy) ÷ (control - dense) in mean NLL: 1 = as good as dense, 0 = as if nothing
  // could be found. REQUIRES: policy 0 is dense.
  [[nodiscard]] double Retention(size_t policy) const;

  // The model can do this densely: string score at least 40 %, or control at least 0.5 nat per
  // token worse. Otherwise the cell says nothing about sparse attention.
  [[nodiscard]] bool IsAdmissible() const;
};

struct TaskOptions {
  std::vector<const TaskFamily*> families;
  uint32_t num_samples = 10;
  uint64_t seed = 1;
  // The last tokens of the context, which are decoded under the policy instead of being computed
  // densely; what is asked for is hidden among them, early on as far as whole paragraphs allow.
  // 0: none, and all depths.
  uint32_t generated_tokens = 0;
};

// What a run would refuse. `context_tokens`: of context and question.
// ERRORS: kInvalidArgument: a family needs more tokens, in all or among the generated ones.
[[nodiscard]] absl::Status CheckTaskOptions(const TaskOptions& options, uint32_t context_tokens);

// policies[0] is dense. ERRORS: those of CheckTaskOptions, EvalModel and the tokenizer.
[[nodiscard]] absl::StatusOr<std::vector<TaskCell>> RunTasks(
    EvalModel& model,
    const text::Tokenizer& tokenizer,
    std::span<const EvalPolicy* const> policies,
    const TaskOptions& options,
    uint32_t context_tokens,
    const RunProgress& progress);

}  // namespace spindle::eval
