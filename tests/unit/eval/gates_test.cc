// Each gate passes at its bound and fails beyond it.
#include "eval/gates.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spindle::eval {
namespace {

using testing::IsEmpty;

PolicySummary Policy(PolicyRole role, const std::string& algorithm, double budget, double kl) {
  PolicySummary policy;
  policy.name = std::string(NameOf(role)) + algorithm + BudgetText(budget);
  policy.role = role;
  policy.algorithm = algorithm;
  policy.budget = budget;
  policy.kl = kl;
  policy.window_kl = {kl, kl, kl};
  policy.top1 = 0.99;
  policy.mass_median = 0.97;
  policy.mass_p5 = 0.9;
  return policy;
}

// A run that keeps every bound.
ForcedSummary GoodRun(const std::string& algorithm) {
  ForcedSummary run{.context_tokens = 4096, .num_windows = 32, .num_steps = 256};
  run.policies = {Policy(PolicyRole::kDense, "", 0, 0),
                  Policy(PolicyRole::kStreaming, "", 0, 0.5),
                  Policy(PolicyRole::kRandom, "", 0.125, 0.4),
                  Policy(PolicyRole::kOracle, algorithm, 0.125, 0.01),
                  Policy(PolicyRole::kAlgorithm, algorithm, 0.125, 0.015),
                  Policy(PolicyRole::kOracle, algorithm, 0.06, 0.02),
                  Policy(PolicyRole::kAlgorithm, algorithm, 0.06, 0.03)};
  return run;
}

std::vector<std::string> Failed(const EvalSummary& summary) {
  std::vector<std::string> failed;
  for (const GateResult& gate : CheckGates(summary)) {
    if (!gate.passed) {
      failed.push_back(gate.gate);
    }
  }
  return failed;
}

std::vector<std::string> FailedOf(const ForcedSummary& run) {
  EvalSummary summary;
  summary.forced = {run};
  return Failed(summary);
}

class CurveGates : public testing::Test {
 protected:
  PolicySummary& At(double budget, PolicyRole role = PolicyRole::kAlgorithm) {
    return *std::find_if(run_.policies.begin(), run_.policies.end(), [&](const auto& policy) {
      return policy.role == role && policy.budget == budget;
    });
  }

  void SetKl(PolicySummary& policy, double kl) {
    policy.kl = kl;
    policy.window_kl = {kl, kl, kl};
  }

  ForcedSummary run_ = GoodRun("shadowkv");
};

TEST_F(CurveGates, AGoodRunPasses) {
  EXPECT_THAT(FailedOf(run_), IsEmpty());
}

TEST_F(CurveGates, KlHasABoundPerBudgetAndQuestAWiderOne) {
  SetKl(At(0.125, PolicyRole::kOracle), 0.02);
  SetKl(At(0.125), 0.02);
  EXPECT_THAT(FailedOf(run_), IsEmpty());
  SetKl(At(0.125), 0.0201);
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("kl"));
  run_.context_tokens = 2048;
  EXPECT_THAT(FailedOf(run_), IsEmpty()) << "curves apply from 4,096 tokens on";

  run_ = GoodRun("quest");
  SetKl(At(0.06), 0.04);
  SetKl(At(0.125), 0.0399);
  EXPECT_THAT(FailedOf(run_), IsEmpty());
  SetKl(At(0.06), 0.0701);
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("regret"));
  SetKl(At(0.06), 0.0751);
  EXPECT_THAT(FailedOf(run_), testing::UnorderedElementsAre("kl", "regret"));
}

TEST_F(CurveGates, Top1PerplexityAndMass) {
  At(0.06).top1 = 0.909;
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("top1"));
  At(0.06).top1 = 0.91;
  At(0.06).ppl_change = 0.061;
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("ppl"));
  At(0.06).ppl_change = -0.2;
  At(0.125).mass_median = 0.941;
  At(0.125).mass_p5 = 0.69;
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("mass"));
  At(0.125).mass_p5 = 0.7;
  At(0.125, PolicyRole::kOracle).mass_median = 0.999;
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("mass")) << "below 0.95 of the oracle's";
  At(0.125, PolicyRole::kOracle).mass_median = 0.97;
  At(0.125).mass_median = 0.97;
  At(0.125).overestimate = 0.1;
  EXPECT_THAT(FailedOf(run_), testing::IsEmpty());
  At(0.125).overestimate = 0.11;
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("mass estimate"));
}

TEST_F(CurveGates, RegretIsAgainstTheOracle) {
  SetKl(At(0.06, PolicyRole::kOracle), 0.005);
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("regret"));
}

TEST_F(CurveGates, OrderFailsOnlyWhereWindowsAgree) {
  At(0.06, PolicyRole::kOracle).window_kl = {0.031, 0.001, 0.03};
  EXPECT_THAT(FailedOf(run_), IsEmpty());
  At(0.06, PolicyRole::kOracle).window_kl = {0.031, 0.031, 0.032};
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("order"));
  run_ = GoodRun("shadowkv");
  SetKl(At(0.125), 0.031);
  EXPECT_THAT(FailedOf(run_), testing::UnorderedElementsAre("order", "kl", "regret"))
      << "a larger budget may not be worse";
}

TEST_F(CurveGates, FewPositionsAreNoResult) {
  run_.num_windows = 31;
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("positions"));
}

TEST_F(CurveGates, DriftIsGrowthPerThousandTokens) {
  At(0.06).block_kl = {0.027, 0.029, 0.031, 0.033};  // 0.002 per 256 = 27 % of 0.03 per 1,024
  EXPECT_THAT(FailedOf(run_), testing::ElementsAre("drift"));
  At(0.06).block_kl = {0.028, 0.029, 0.030, 0.031};  // 13 %
  EXPECT_THAT(FailedOf(run_), IsEmpty());
}

TEST(Gates, SparsePrefillHasBoundsOfItsOwn) {
  ForcedSummary run{.context_tokens = 7424, .num_windows = 2, .num_steps = 128};
  run.policies = {Policy(PolicyRole::kDense, "", 0, 0),
                  Policy(PolicyRole::kPrefill, "xattention", 0, 0.02)};
  run.policies[1].top1 = 0.94;
  EXPECT_THAT(FailedOf(run), IsEmpty());
  run.policies[1].kl = 0.0201;
  EXPECT_EQ(FailedOf(run), (std::vector<std::string>{"kl"}));
  run.policies[1].kl = 0.01;
  run.policies[1].top1 = 0.9399;
  EXPECT_EQ(FailedOf(run), (std::vector<std::string>{"top1"}));
  run.policies[1].top1 = 0.95;
  run.num_steps = 127;
  EXPECT_EQ(FailedOf(run), (std::vector<std::string>{"positions"}));
}

TEST(Gates, LongAnswersRepeatThemselvesAsDenseOnesDo) {
  EvalSummary summary;
  summary.free = {
      {.context_tokens = 4096,
       .num_steps = 1024,
       .num_windows = 2,
       .rows = {{.policy = "dense", .distinct_3grams = 0.8},
                {.policy = "quest", .role = PolicyRole::kAlgorithm, .distinct_3grams = 0.721}}}};
  EXPECT_THAT(Failed(summary), IsEmpty());
  summary.free[0].rows[1].distinct_3grams = 0.719;
  EXPECT_THAT(Failed(summary), testing::ElementsAre("repetition"));
  summary.free[0].num_steps = 1023;
  EXPECT_THAT(Failed(summary), testing::ElementsAre("nothing")) << "too short to say anything";
}

TEST(Gates, Exactness) {
  EvalSummary summary;
  summary.exactness = {{.algorithm = "quest",
                        .full_budget_equals_dense = true,
                        .alone_equals_batched = true,
                        .num_steps = 8}};
  EXPECT_THAT(Failed(summary), IsEmpty());
  summary.exactness[0].full_budget_equals_dense = false;
  EXPECT_THAT(Failed(summary), testing::ElementsAre("exactness"));
  summary.exactness[0].alone_equals_batched = false;
  EXPECT_THAT(Failed(summary), testing::ElementsAre("exactness", "batching"));
}

TEST(Gates, RetroInferIsNearDense) {
  EvalSummary summary;
  summary.exactness = {{.algorithm = "retroinfer",
                        .full_budget_equals_dense = false,
                        .full_budget_error = 0.02,
                        .alone_equals_batched = true,
                        .num_steps = 8}};
  EXPECT_THAT(Failed(summary), IsEmpty());
  summary.exact_arithmetic = true;
  EXPECT_THAT(Failed(summary), testing::ElementsAre("exactness"));
}

TaskSummary Task(const std::string& family, double streaming, double sparse) {
  return {.family = family,
          .context_tokens = 4096,
          .num_samples = 100,
          .control_nll = 5,
          .is_admissible = true,
          .rows = {{.policy = "streaming", .role = PolicyRole::kStreaming, .retention = streaming},
                   {.policy = "quest@12.5%",
                    .role = PolicyRole::kAlgorithm,
                    .algorithm = "quest",
                    .budget = 0.125,
                    .retention = sparse},
                   {.policy = "oracle",
                    .role = PolicyRole::kOracle,
                    .algorithm = "quest",
                    .budget = 0.125,
                    .retention = 0}}};
}

TEST(Gates, NeedlesAreKeptAndStreamingLosesThem) {
  EvalSummary summary;
  summary.tasks = {Task("copy", 0.3, 0.95), Task("passkey", 0.1, 1.2)};
  EXPECT_THAT(Failed(summary), IsEmpty());
  summary.tasks[0].rows[0].retention = 0.31;
  summary.tasks[1].rows[1].retention = 0.94;
  EXPECT_THAT(Failed(summary), testing::ElementsAre("retention", "retention"));
}

TEST(Gates, FewSamplesAreNoResult) {
  EvalSummary summary;
  summary.tasks = {Task("copy", 0.3, 0.95), Task("passkey", 0.1, 1.2)};
  summary.tasks[1].num_samples = 99;
  EXPECT_THAT(Failed(summary), testing::ElementsAre("samples"));
}

TEST(Gates, NothingCheckedIsNothingPassed) {
  EXPECT_THAT(Failed(EvalSummary()), testing::ElementsAre("nothing"));
}

TEST(Gates, UnsolvableTasksProveNothing) {
  EvalSummary summary;
  summary.tasks = {Task("copy", 0, 1), Task("passkey", 0, 0)};
  summary.tasks[1].is_admissible = false;
  EXPECT_THAT(Failed(summary), testing::ElementsAre("solvable"));
  summary.tasks.push_back(Task("kv-retrieve", 0, 1));
  EXPECT_THAT(Failed(summary), IsEmpty());
  summary.tasks[0].is_admissible = false;
  EXPECT_THAT(Failed(summary), testing::ElementsAre("solvable"));
}

}  // namespace
}  // namespace spindle::eval
