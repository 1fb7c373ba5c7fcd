// The evaluation harness over a tiny model: what it says of policies whose effect is known.
#include <gtest/gtest.h>

#include "eval/eval_model.h"
#include "eval/forced_run.h"
#include "eval/free_run.h"
#include "eval/policies.h"
#include "eval/step_times.h"
#include "eval/summary.h"
#include "integration/logits_support.h"
#include "kernels/registry.h"

namespace spindle::eval {
namespace {

constexpr uint32_t kContext = 300;
constexpr uint32_t kSteps = 40;

std::string ModelPath() {
  return std::string(SPINDLE_TEST_GOLDEN_DIR) + "/models/llama.gguf";
}

// Shared with the model.
std::shared_ptr<const formats::ModelFile> OpenModel() {
  auto file = formats::ModelFile::Open(ModelPath());
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

class EvalRun : public testing::Test {
 protected:
  void SetUp() override {
    auto model = EvalModel::Load(OpenModel(),
                                 {.threads = 2, .kv_bytes = uint64_t{64} << 20},
                                 *kernels::BestKernels(),
                                 nullptr);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    for (uint32_t w = 0; w < 2; ++w) {
      TextWindow window{.source = "drawn"};
      for (uint32_t i = 0; i < kContext + kSteps; ++i) {
        window.tokens.push_back(static_cast<TokenId>((i * i + 7 * i * (w + 1)) % 251));
      }
      windows_.push_back(std::move(window));
    }
  }

  std::vector<EvalPolicy> Policies(const std::vector<double>& budgets) {
    auto policies =
        MakePolicies({.algorithms = {"quest", "shadowkv"}, .budgets = budgets, .recent_tokens = 16},
                     model_->geometry());
    EXPECT_TRUE(policies.ok()) << policies.status();
    return *std::move(policies);
  }

  ForcedSummary Run(std::span<const EvalPolicy> policies) {
    const auto result =
        RunForced(*model_, policies, windows_, kContext, kSteps, [](double /*fraction*/) {});
    EXPECT_TRUE(result.ok()) << result.status();
    return Summarise(*result, policies, windows_, 1);
  }

  std::unique_ptr<EvalModel> model_;
  std::vector<TextWindow> windows_;
};

TEST_F(EvalRun, DenseIsWhatThePlainModelSays) {
  const std::vector<EvalPolicy> policies = Policies({0.5});
  const ForcedSummary run = Run(policies);
  test::RigOptions options;
  options.path = ModelPath();
  auto rig = test::ModelRig::Create(options);
  ASSERT_TRUE(rig.ok()) << rig.status();
  double nll = 0;
  for (const TextWindow& window : windows_) {
    const std::vector<float> logits = (*rig)->LogitsOf(window.tokens, 64);
    const size_t vocab = (*rig)->model().config().vocab_size;
    for (uint32_t i = 0; i < kSteps; ++i) {
      const size_t at = kContext - 1 + i;
      nll += NegativeLogLikelihood(ReadLogits(std::span(logits).subspan(at * vocab, vocab)),
                                   window.tokens[at + 1]);
    }
  }
  EXPECT_DOUBLE_EQ(run.dense_nll, nll / (2 * kSteps));
  EXPECT_EQ(run.policies.front().kl, 0);
}

TEST_F(EvalRun, AFullBudgetIsDense) {
  const std::vector<EvalPolicy> policies = Policies({1});
  for (const PolicySummary& policy : Run(policies).policies) {
    if (policy.role != PolicyRole::kDense && policy.role != PolicyRole::kStreaming) {
      EXPECT_EQ(policy.kl, 0) << policy.name;
      EXPECT_EQ(policy.top1, 1) << policy.name;
      // Both layers of the model are dense under Quest.
      if (policy.algorithm != "quest") {
        EXPECT_EQ(policy.attended_share, 1) << policy.name;
        EXPECT_NEAR(policy.mass_p5, 1, 1e-4) << policy.name;
      }
    }
  }
}

// Contexts of 300 tokens have one block that tri_shape with the shortest window computes sparsely.
TEST_F(EvalRun, ContextsAreComputedSparsely) {
  const auto policies = MakePolicies(
      {.algorithms = {},
       .budgets = {},
       .prefills = {"tri_shape:start=0:recent=1:last_dense=1", "xattention:threshold=1"}},
      model_->geometry());
  ASSERT_TRUE(policies.ok()) << policies.status();
  const ForcedSummary summary = Run(*policies);
  const PolicySummary& sparse = summary.policies[2];
  EXPECT_GT(sparse.kl, 0);
  EXPECT_EQ(sparse.attended_share, 0.5) << "one block of two";
  EXPECT_EQ(summary.policies[3].kl, 0);
  EXPECT_EQ(summary.policies[3].attended_share, 0) << "nothing was sparse";
}

TEST_F(EvalRun, TheOracleCoversTheMostMass) {
  const std::vector<EvalPolicy> policies = Policies({0.1});
  const ForcedSummary run = Run(policies);
  const PolicySummary& oracle = *run.Find(PolicyRole::kOracle, "shadowkv", 0.1);
  const PolicySummary& algorithm = *run.Find(PolicyRole::kAlgorithm, "shadowkv", 0.1);
  const PolicySummary& streaming = *run.Find(PolicyRole::kStreaming, "", 0);
  EXPECT_GE(oracle.attended_tokens, algorithm.attended_tokens);
  EXPECT_LT(oracle.attended_tokens, algorithm.attended_tokens + 8) << "a chunk";
  EXPECT_GE(oracle.mass_median, algorithm.mass_median);
  EXPECT_GT(oracle.mass_median, streaming.mass_median);
  EXPECT_NEAR(streaming.attended_tokens, 4 + 16, 1e-9);
  EXPECT_GT(streaming.kl, 0);
  EXPECT_GT(oracle.overlap, 0);
}

TEST_F(EvalRun, BitsDoNotDependOnCompany) {
  const std::vector<EvalPolicy> policies = Policies({0.5, 0.1});
  const auto results = CheckExactness(*model_, policies, windows_[0], kContext, 8);
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_EQ(results->size(), 2U);
  for (const ExactnessResult& result : *results) {
    EXPECT_TRUE(result.full_budget_equals_dense) << result.algorithm;
    EXPECT_TRUE(result.alone_equals_batched) << result.algorithm;
  }
}

TEST_F(EvalRun, ForksLeaveNothingBehind) {
  const std::vector<EvalPolicy> policies = Policies({0.1});
  const ForcedSummary first = Run(policies);
  const ForcedSummary second = Run(policies);
  for (size_t i = 0; i < first.policies.size(); ++i) {
    EXPECT_EQ(first.policies[i].window_kl, second.policies[i].window_kl);
    EXPECT_EQ(first.policies[i].head_mass, second.policies[i].head_mass);
  }
}

TEST_F(EvalRun, FreeDecodingUnderAFullBudgetIsTheDenseText) {
  const std::vector<EvalPolicy> policies = Policies({1});
  std::vector<const EvalPolicy*> pointers;
  for (const EvalPolicy& policy : policies) {
    pointers.push_back(&policy);
  }
  const auto result =
      RunFree(*model_, pointers, windows_, kContext, kSteps, [](double /*fraction*/) {});
  ASSERT_TRUE(result.ok()) << result.status();
  for (size_t i = 0; i < policies.size(); ++i) {
    if (policies[i].role != PolicyRole::kStreaming) {
      EXPECT_EQ(result->policies[i].divergence, std::vector<double>(2, kSteps))
          << policies[i].Name();
    }
  }
}

// Of a clock that a step moves by nothing, and asking it by one second: every round takes one.
class CountingClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override {
    clock_.Advance(std::chrono::seconds(1));
    return clock_.Now();
  }

 private:
  mutable VirtualClock clock_;
};

TEST_F(EvalRun, StepsAreTimedAtEveryContext) {
  const std::vector<EvalPolicy> policies = Policies({0.1});
  const CountingClock clock;
  double done = -1;
  const StepTimesOptions options = {
      .contexts = {64, 200, kContext}, .num_steps = 4, .num_rounds = 3};
  const auto times =
      TimeSteps(*model_, *policies.back().policy, windows_, options, clock, [&](double fraction) {
        EXPECT_GT(fraction, done);
        done = fraction;
      });
  ASSERT_TRUE(times.ok()) << times.status();
  ASSERT_EQ(times->size(), 3U);
  for (size_t i = 0; i < times->size(); ++i) {
    EXPECT_EQ((*times)[i].context_tokens, options.contexts[i]);
    EXPECT_EQ((*times)[i].dense_seconds, 0.25);
    EXPECT_EQ((*times)[i].policy_seconds, 0.25);
    EXPECT_EQ((*times)[i].speedup, 1);
  }
}

TEST_F(EvalRun, TooLittleMemoryIsAnError) {
  auto model = EvalModel::Load(OpenModel(),
                               {.threads = 1, .kv_bytes = uint64_t{256} << 10},
                               *kernels::BestKernels(),
                               nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(absl::IsResourceExhausted((*model)->Prefill(windows_[0].tokens).status()));
}

}  // namespace
}  // namespace spindle::eval
