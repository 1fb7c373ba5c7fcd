// What a run found, in few numbers per policy: input of gates and reports.
// Thread-safety: value types and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/forced_run.h"
#include "eval/free_run.h"
#include "eval/policies.h"
#include "eval/statistics.h"
#include "eval/task_run.h"

namespace spindle::eval {

// Of one policy in a forced run, over all windows and steps; intervals by bootstrap over windows.
struct PolicySummary {
  std::string name = {};
  PolicyRole role = PolicyRole::kDense;
  std::string algorithm = {};
  double budget = 0;

  double kl = 0;  // mean
  Interval kl_interval = {};
  double kl_median = 0;
  double kl_p99 = 0;
  double kl_max = 0;
  double top1 = 0;  // share of steps with the dense run's most likely token
  Interval top1_interval = {};
  double top5_overlap = 0;
  double nll = 0;
  double ppl_change = 0;  // exp(mean NLL - dense mean NLL) - 1
  Interval ppl_interval = {};
  double rms_probability_change = 0;

  std::vector<double> window_kl = {};  // means
  std::vector<double> block_kl = {};   // means of blocks of kDriftBlock steps

  // Over layers and KV heads that select; 0 where none does, mass also where it is not measured. Of
  // sparse prefill: over the sparse blocks of the contexts.
  double attended_share = 0;
  double attended_tokens = 0;
  double mass_median = 0;
  double mass_p5 = 0;
  double selected_mass_median = 0;
  // The algorithm's estimate of its mass less the truth, mean; none: it makes no estimate.
  std::optional<double> overestimate = {};
  double overlap = 0;
  std::vector<std::vector<double>> head_mass = {};  // [layer][KV head]; -1: dense, or not measured
};

inline constexpr uint32_t kDriftBlock = 256;

struct ForcedSummary {
  uint32_t context_tokens = 0;
  uint32_t num_windows = 0;
  uint32_t num_steps = 0;
  double dense_nll = 0;
  std::vector<std::string> window_texts = {};  // [window] names
  std::vector<PolicySummary> policies = {};

  // Mean KL of a policy over the windows of one text; none: it has no windows.
  [[nodiscard]] std::optional<double> KlOfText(const PolicySummary& policy,
                                               const std::string& text) const;

  // Null: not in the run.
  [[nodiscard]] const PolicySummary* Find(PolicyRole role,
                                          const std::string& algorithm,
                                          double budget) const;
};

[[nodiscard]] ForcedSummary Summarise(const ForcedResult& result,
                                      std::span<const EvalPolicy> policies,
                                      std::span<const TextWindow> windows,
                                      uint64_t seed);

// A task cell's figures for one policy.
struct TaskRow {
  std::string policy = {};
  PolicyRole role = PolicyRole::kDense;
  std::string algorithm = {};
  double budget = 0;
  double nll = 0;
  double token_accuracy = 0;
  double string_score = 0;
  double retention = 0;
  // Against dense, of samples with all references in the answer: chance of so uneven a change.
  double mcnemar_p = 1;
};

struct TaskSummary {
  std::string family = {};
  uint32_t context_tokens = 0;
  uint32_t num_samples = 0;
  double control_nll = 0;
  bool is_admissible = false;
  std::vector<TaskRow> rows = {};
};

[[nodiscard]] TaskSummary Summarise(const TaskCell& cell,
                                    std::span<const EvalPolicy* const> policies);

// Free decoding of one policy.
struct FreeRow {
  std::string policy = {};
  PolicyRole role = PolicyRole::kDense;
  double divergence_median = 0;  // step
  double distinct_3grams = 0;    // mean
  double longest_repeat = 0;     // mean, tokens
};

struct FreeSummary {
  uint32_t context_tokens = 0;
  uint32_t num_steps = 0;
  uint32_t num_windows = 0;
  std::vector<FreeRow> rows = {};
};

[[nodiscard]] FreeSummary Summarise(const FreeResult& result,
                                    std::span<const EvalPolicy* const> policies);

struct EvalSummary {
  std::string model = {};
  std::string kernels = {};
  bool exact_arithmetic = false;  // --dtype f32
  uint64_t seed = 0;
  std::vector<std::string> texts = {};
  std::vector<ForcedSummary> forced = {};
  std::vector<ExactnessResult> exactness = {};
  std::vector<TaskSummary> tasks = {};
  uint32_t generated_tokens = 0;  // of the contexts of tasks
  std::vector<FreeSummary> free = {};
};

}  // namespace spindle::eval
