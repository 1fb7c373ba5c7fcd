#include "eval/gates.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "eval/statistics.h"

namespace spindle::eval {
namespace {

constexpr uint32_t kLeastContext = 4096;
constexpr uint64_t kSeed = 1;

// Bounds at one budget.
struct CurveBounds {
  double budget;
  double kl;
  double quest_kl;
  double top1;
  double quest_top1;
  double ppl_change;  // Quest: twice that
};

constexpr CurveBounds kCurve[] = {
    {0.25, 0.01, 0.02, 0.96, 0.94, 0.01},
    {0.125, 0.02, 0.045, 0.94, 0.91, 0.03},
    {0.06, 0.04, 0.075, 0.91, 0.88, 0.06},
};

// Of contexts that were computed sparsely.
constexpr double kPrefillKl = 0.02;
constexpr double kPrefillTop1 = 0.94;
constexpr double kPrefillRetention = 0.95;

struct MassBounds {
  double median;
  double p5;
  double of_oracle;
};

constexpr double kMassBudget = 0.125;
constexpr MassBounds kMass = {0.94, 0.70, 0.95};
constexpr MassBounds kQuestMass = {0.85, 0.55, 0.88};

// Of a share of attention mass (`top_p_mass` in docs/http-api.md).
constexpr double kMaxOverestimate = 0.1;

constexpr double kExactError = 1e-3;
constexpr double kDefaultError = 2e-2;

constexpr double kRegretLeastBudget = 0.03;
constexpr double kRegretMargin = 0.01;

constexpr double kRetentionBudget = 0.125;
constexpr double kRetention = 0.95;
constexpr double kSmallRetentionBudget = 0.06;
constexpr double kSmallRetention = 0.85;
constexpr double kStreamingRetention = 0.3;

constexpr double kDriftPerThousand = 0.2;
constexpr size_t kDriftBlocks = 4;
constexpr double kRepetition = 0.1;
constexpr uint32_t kRepetitionSteps = 1024;

std::string Percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

class Checks {
 public:
  void AtMost(std::string_view gate, const std::string& what, double value, double bound) {
    Add(gate, what, fmt::format("{:.4f}", value), fmt::format("<= {:.4f}", bound), value <= bound);
  }

  void AtLeast(std::string_view gate, const std::string& what, double value, double bound) {
    Add(gate, what, fmt::format("{:.4f}", value), fmt::format(">= {:.4f}", bound), value >= bound);
  }

  void Add(std::string_view gate,
           const std::string& what,
           const std::string& value,
           const std::string& bound,
           bool passed) {
    results_.push_back({std::string(gate), what, value, bound, passed});
  }

  [[nodiscard]] bool empty() const { return results_.empty(); }

  std::vector<GateResult> Take() { return std::move(results_); }

 private:
  std::vector<GateResult> results_;
};

std::string At(const PolicySummary& policy, const ForcedSummary& run) {
  return fmt::format("{} at {}", policy.name, run.context_tokens);
}

bool Is(double budget, double other) {
  return std::abs(budget - other) < 1e-9;
}

// Blocks of 64 are coarse for so small a model: the others' curves do not apply.
bool HasCurve(const PolicySummary& policy) {
  return BaseName(policy.algorithm) != "seer_r";
}

void CheckCurve(const ForcedSummary& run, const PolicySummary& policy, Checks* checks) {
  const bool is_quest = BaseName(policy.algorithm) == "quest";
  for (const CurveBounds& bounds : kCurve) {
    if (!Is(bounds.budget, policy.budget)) {
      continue;
    }
    const double ppl = bounds.ppl_change * (is_quest ? 2 : 1);
    checks->AtMost("kl", At(policy, run), policy.kl, is_quest ? bounds.quest_kl : bounds.kl);
    checks->AtLeast(
        "top1", At(policy, run), policy.top1, is_quest ? bounds.quest_top1 : bounds.top1);
    checks->AtMost("ppl", At(policy, run), policy.ppl_change, ppl);
  }
  const PolicySummary* oracle = run.Find(PolicyRole::kOracle, policy.algorithm, policy.budget);
  if (Is(policy.budget, kMassBudget) && oracle != nullptr && policy.mass_median > 0) {
    const MassBounds& bounds = is_quest ? kQuestMass : kMass;
    checks->AtLeast("mass", At(policy, run) + ", median head", policy.mass_median, bounds.median);
    checks->AtLeast("mass", At(policy, run) + ", 5th percentile", policy.mass_p5, bounds.p5);
    checks->AtLeast("mass",
                    At(policy, run) + ", median ÷ oracle's",
                    policy.mass_median / oracle->mass_median,
                    bounds.of_oracle);
  }
}

void CheckEstimate(const ForcedSummary& run, const PolicySummary& policy, Checks* checks) {
  if (policy.overestimate.has_value()) {
    checks->AtMost("mass estimate", At(policy, run), *policy.overestimate, kMaxOverestimate);
  }
}

void CheckRegret(const ForcedSummary& run, const PolicySummary& policy, Checks* checks) {
  const PolicySummary* oracle = run.Find(PolicyRole::kOracle, policy.algorithm, policy.budget);
  if (oracle == nullptr || policy.budget < kRegretLeastBudget - 1e-9) {
    return;
  }
  const double factor =
      BaseName(policy.algorithm) == "quest" || BaseName(policy.algorithm) == "seer_r" ? 3 : 2;
  checks->AtMost("regret", At(policy, run), policy.kl, factor * oracle->kl + kRegretMargin);
}

// `better` may not be worse than `worse` by more than windows differ: the lower end of the paired
// interval of the difference stays at or below 0.
void CheckOrder(const ForcedSummary& run,
                const PolicySummary& better,
                const PolicySummary& worse,
                Checks* checks) {
  std::vector<double> differences;
  for (size_t i = 0; i < better.window_kl.size(); ++i) {
    differences.push_back(better.window_kl[i] - worse.window_kl[i]);
  }
  const Interval interval = BootstrapMean(differences, kSeed);
  checks->Add("order",
              fmt::format("KL of {} <= {} at {}", better.name, worse.name, run.context_tokens),
              fmt::format("{:.4f}, {:.4f}", better.kl, worse.kl),
              "ordered, or apart by no more than windows differ",
              interval.low <= 0);
}

void CheckOrders(const ForcedSummary& run, const PolicySummary& policy, Checks* checks) {
  const PolicySummary* oracle = run.Find(PolicyRole::kOracle, policy.algorithm, policy.budget);
  // The estimation zone of RetroInfer covers mass that no selection has.
  if (oracle != nullptr && BaseName(policy.algorithm) != "retroinfer") {
    CheckOrder(run, *oracle, policy, checks);
  }
  for (const PolicySummary& other : run.policies) {
    const bool bounds_it = other.role == PolicyRole::kStreaming ||
                           (other.role == PolicyRole::kRandom && Is(other.budget, policy.budget));
    const bool is_smaller = other.role == PolicyRole::kAlgorithm &&
                            other.algorithm == policy.algorithm && other.budget < policy.budget;
    if (bounds_it || is_smaller) {
      CheckOrder(run, policy, other, checks);
    }
  }
}

// Growth of KL over a long generation, relative to its mean.
void CheckDrift(const ForcedSummary& run, const PolicySummary& policy, Checks* checks) {
  if (policy.block_kl.size() < kDriftBlocks || policy.kl <= 0) {
    return;
  }
  const double per_thousand = Slope(policy.block_kl) * 1024 / kDriftBlock / policy.kl;
  checks->Add("drift",
              At(policy, run),
              fmt::format("{} per 1,024 tokens", Percent(per_thousand)),
              "<= " + Percent(kDriftPerThousand),
              per_thousand <= kDriftPerThousand);
}

// A policy may not repeat itself more, or less, than dense attention does. Short answers say
// little.
void CheckRepetition(const FreeSummary& run, Checks* checks) {
  if (run.num_steps < kRepetitionSteps) {
    return;
  }
  const double dense = run.rows.front().distinct_3grams;
  for (const FreeRow& row : run.rows) {
    if (row.role == PolicyRole::kAlgorithm) {
      checks->Add("repetition",
                  fmt::format("{} at {}, distinct 3-grams ÷ dense", row.policy, run.context_tokens),
                  fmt::format("{:.3f}", row.distinct_3grams / dense),
                  fmt::format("within {:.0f} %", 100 * kRepetition),
                  std::abs(row.distinct_3grams / dense - 1) <= kRepetition);
    }
  }
}

void CheckRetention(const TaskSummary& task, Checks* checks) {
  checks->Add("samples",
              fmt::format("{} at {}", task.family, task.context_tokens),
              std::to_string(task.num_samples),
              fmt::format(">= {}", kGateSamples),
              task.num_samples >= kGateSamples);
  for (const TaskRow& row : task.rows) {
    const std::string what =
        fmt::format("{}, {} at {}", row.policy, task.family, task.context_tokens);
    if (row.role == PolicyRole::kStreaming) {
      checks->AtMost("retention", what, row.retention, kStreamingRetention);
    } else if (row.role == PolicyRole::kPrefill) {
      checks->AtLeast("retention", what, row.retention, kPrefillRetention);
    } else if (row.role == PolicyRole::kAlgorithm && Is(row.budget, kRetentionBudget)) {
      checks->AtLeast("retention", what, row.retention, kRetention);
    } else if (row.role == PolicyRole::kAlgorithm && Is(row.budget, kSmallRetentionBudget)) {
      checks->AtLeast("retention", what, row.retention, kSmallRetention);
    }
  }
}

void CheckPrefill(const ForcedSummary& run, const PolicySummary& policy, Checks* checks) {
  checks->AtMost("kl", At(policy, run), policy.kl, kPrefillKl);
  checks->AtLeast("top1", At(policy, run), policy.top1, kPrefillTop1);
}

uint64_t LeastPositions(const ForcedSummary& run) {
  const bool has_algorithm =
      std::any_of(run.policies.begin(), run.policies.end(), [](const PolicySummary& policy) {
        return policy.role == PolicyRole::kAlgorithm;
      });
  return has_algorithm ? kGatePositions : kPrefillGatePositions;
}

// Tasks prove something only if the model can do them.
void CheckTasks(const EvalSummary& summary, Checks* checks) {
  const std::set<std::string> gated = {"copy", "kv-retrieve", "passkey"};
  std::set<uint32_t> lengths;
  for (const TaskSummary& task : summary.tasks) {
    if (gated.count(task.family) > 0) {
      lengths.insert(task.context_tokens);
    }
  }
  for (const uint32_t length : lengths) {
    bool copies = false;
    uint32_t others = 0;
    for (const TaskSummary& task : summary.tasks) {
      if (task.context_tokens == length && task.is_admissible) {
        copies = copies || task.family == "copy";
        others += task.family == "copy" ? 0U : 1U;
      }
    }
    checks->Add("solvable",
                fmt::format("dense at {}", length),
                fmt::format("copy {}, {} other families", copies ? "solved" : "not solved", others),
                "copy and at least one other",
                copies && others > 0);
  }
  for (const TaskSummary& task : summary.tasks) {
    if (task.is_admissible && gated.count(task.family) > 0) {
      CheckRetention(task, checks);
    }
  }
}

void CheckExact(const EvalSummary& summary, Checks* checks) {
  const auto word = [](bool equal) { return equal ? "equal bits" : "other bits"; };
  for (const ExactnessResult& result : summary.exactness) {
    if (BaseName(result.algorithm) == "retroinfer") {
      // Its clusters are attended in an order of their own.
      checks->AtMost("exactness",
                     "retroinfer with a budget of 100 % and dense, relative error",
                     result.full_budget_error,
                     summary.exact_arithmetic ? kExactError : kDefaultError);
    } else {
      checks->Add("exactness",
                  result.algorithm + " with a budget of 100 % and dense",
                  word(result.full_budget_equals_dense),
                  "equal bits",
                  result.full_budget_equals_dense);
    }
    checks->Add("batching",
                result.algorithm + " alone and in a batch",
                word(result.alone_equals_batched),
                "equal bits",
                result.alone_equals_batched);
  }
}

}  // namespace

std::vector<GateResult> CheckGates(const EvalSummary& summary) {
  Checks checks;
  CheckExact(summary, &checks);
  for (const ForcedSummary& run : summary.forced) {
    const uint64_t positions = uint64_t{run.num_windows} * run.num_steps;
    checks.Add("positions",
               fmt::format("at {}", run.context_tokens),
               std::to_string(positions),
               fmt::format(">= {}", LeastPositions(run)),
               positions >= LeastPositions(run));
    for (const PolicySummary& policy : run.policies) {
      if (policy.role == PolicyRole::kPrefill && run.context_tokens >= kLeastContext) {
        CheckPrefill(run, policy, &checks);
      }
      if (policy.role != PolicyRole::kAlgorithm) {
        continue;
      }
      CheckRegret(run, policy, &checks);
      CheckEstimate(run, policy, &checks);
      CheckOrders(run, policy, &checks);
      CheckDrift(run, policy, &checks);
      if (run.context_tokens >= kLeastContext && HasCurve(policy)) {
        CheckCurve(run, policy, &checks);
      }
    }
  }
  for (const FreeSummary& run : summary.free) {
    CheckRepetition(run, &checks);
  }
  CheckTasks(summary, &checks);
  if (checks.empty()) {
    checks.Add("nothing", "the run measured nothing that has a gate", "0 gates", ">= 1", false);
  }
  return checks.Take();
}

}  // namespace spindle::eval
