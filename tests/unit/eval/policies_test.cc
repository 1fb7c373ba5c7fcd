#include "eval/policies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spindle::eval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const kv::KvGeometry kGeometry{.num_layers = 4, .num_kv_heads = 2, .head_dim = 64};

TEST(Policies, BudgetsAreSharesOrPerCents) {
  EXPECT_THAT(*ParseBudgets("25%,0.125,1.5%,100%"), ElementsAre(0.25, 0.125, 0.015, 1.0));
  for (const char* text : {"0", "0%", "1.5", "101%", "-3%", "x", "25%%", "nan", "25%,,6%"}) {
    EXPECT_THAT(ParseBudgets(text).status().message(), HasSubstr("(0%, 100%]")) << text;
  }
  EXPECT_EQ(BudgetText(0.125), "12.5%");
  EXPECT_EQ(BudgetText(0.06), "6%");
}

TEST(Policies, EveryAlgorithmHasItsOracleAtEveryBudget) {
  const auto policies =
      MakePolicies({.algorithms = {"quest", "shadowkv"}, .budgets = {0.25, 0.06}}, kGeometry);
  ASSERT_TRUE(policies.ok()) << policies.status();
  std::vector<std::string> names;
  for (const EvalPolicy& policy : *policies) {
    names.push_back(policy.Name());
  }
  EXPECT_THAT(names,
              ElementsAre("dense",
                          "streaming",
                          "random@25%",
                          "random@6%",
                          "oracle(quest)@25%",
                          "quest@25%",
                          "oracle(quest)@6%",
                          "quest@6%",
                          "oracle(shadowkv)@25%",
                          "shadowkv@25%",
                          "oracle(shadowkv)@6%",
                          "shadowkv@6%"));
  EXPECT_EQ((*policies)[0].policy, nullptr);
  for (size_t i = 1; i < policies->size(); ++i) {
    const EvalPolicy& policy = (*policies)[i];
    const bool starts_dense = policy.algorithm == "quest";
    EXPECT_EQ(policy.policy->IsDenseLayer(LayerIdx(1)), starts_dense) << policy.Name();
    EXPECT_FALSE(policy.policy->IsDenseLayer(LayerIdx(2)));
    EXPECT_FALSE(policy.policy->IsDenseAt(1));
    EXPECT_EQ(policy.policy->BudgetTokens(LayerIdx(2), KvHeadIdx(0), 1000),
              static_cast<uint32_t>(1000 * policy.budget));
  }
}

TEST(Policies, SparsePrefillHasItsKnobsInItsName) {
  const auto policies = MakePolicies(
      {.algorithms = {}, .budgets = {}, .prefills = {"xattention", "tri_shape:recent=256:start=0"}},
      kGeometry);
  ASSERT_TRUE(policies.ok()) << policies.status();
  ASSERT_EQ(policies->size(), 4U);
  EXPECT_EQ((*policies)[2].Name(), "prefill(xattention)");
  EXPECT_EQ((*policies)[2].policy, nullptr);
  EXPECT_EQ((*policies)[3].Name(), "prefill(tri_shape:recent=256:start=0)");
  EXPECT_EQ((*policies)[3].prefill->SparseBegin(), 3U * 128);
  for (const auto& [text, why] : {std::pair("telepathy", "there are xattention, tri_shape"),
                                  std::pair("xattention:stride", "KNOB=NUMBER"),
                                  std::pair("xattention:stride=x", "KNOB=NUMBER"),
                                  std::pair("xattention:stride=12", "8 or 16"),
                                  std::pair("tri_shape:recent=0", "[1, 524288]"),
                                  std::pair("tri_shape:stride=8", "not known")}) {
    const auto wrong = MakePolicies({.algorithms = {}, .prefills = {text}}, kGeometry);
    EXPECT_THAT(wrong.status().message(), HasSubstr(why)) << text;
    EXPECT_THAT(wrong.status().message(), HasSubstr("--prefill")) << text;
  }
}

TEST(Policies, AlgorithmsWithWeightsAreThoseOfTheModel) {
  class Seer final : public sparse::SparseAlgorithm {
   public:
    [[nodiscard]] std::string_view name() const override { return "seer_r"; }

    [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& /*geometry*/) const override {
      return 0;
    }

    void Select(const sparse::SelectJob& /*job*/,
                sparse::SelectWorkspace& /*workspace*/,
                sparse::Selection* /*out*/) const override {}
  };

  const PolicyOptions options = {.algorithms = {"seer_r"}, .budgets = {0.25}};
  EXPECT_THAT(MakePolicies(options, kGeometry).status().message(), HasSubstr("--sparse-gates"));
  sparse::AlgorithmSet algorithms;
  algorithms.Add(std::make_shared<const Seer>());
  const auto policies = MakePolicies(options, kGeometry, algorithms);
  ASSERT_TRUE(policies.ok()) << policies.status();
  EXPECT_EQ(policies->back().Name(), "seer_r@25%");
  EXPECT_EQ(policies->back().probe->inner(), algorithms.Find("seer_r"));
  EXPECT_EQ(MakeFullPolicy(policies->back()).Name(), "seer_r@100%");
}

TEST(Policies, AlgorithmsWithSettingsOfTheirOwn) {
  const auto policies = MakePolicies(
      {.algorithms = {"quest", "quest:bound_weight=0.5"}, .budgets = {0.25}}, kGeometry);
  ASSERT_TRUE(policies.ok()) << policies.status();
  ASSERT_EQ(policies->size(), 7U);
  const EvalPolicy& published = (*policies)[4];
  EXPECT_EQ(published.Name(), "quest@25%");
  EXPECT_THAT(published.policy->settings().knobs, ElementsAre(16, 1));
  const EvalPolicy& half = (*policies)[6];
  EXPECT_EQ(half.Name(), "quest:bound_weight=0.5@25%");
  EXPECT_THAT(half.policy->settings().knobs, ElementsAre(16, 0.5));
  EXPECT_TRUE(half.policy->settings().dense_layers.at(1));
  EXPECT_THAT(MakeFullPolicy(half).policy->settings().knobs, ElementsAre(16, 0.5));
  EXPECT_EQ(PartitionTokens("shadowkv:x=1"), 8U);
}

TEST(Policies, RefusalsNameTheOption) {
  const auto message = [](const PolicyOptions& options) {
    return std::string(MakePolicies(options, kGeometry).status().message());
  };
  EXPECT_THAT(message({.algorithms = {"qest"}}), HasSubstr("--algorithms"));
  EXPECT_THAT(message({.algorithms = {"qest"}}), HasSubstr("quest"));
  EXPECT_THAT(message({.algorithms = {"quest", "quest"}}), HasSubstr("twice"));
  EXPECT_THAT(message({.algorithms = {"dense"}}), HasSubstr("always"));
  EXPECT_THAT(message({.budgets = {1.5}}), HasSubstr("--budgets"));
  EXPECT_THAT(message({.algorithms = {"retroinfer"}, .sink_tokens = 32}),
              HasSubstr("--algorithms retroinfer: sink_tokens must be at most"));
  EXPECT_THAT(
      message({.algorithms = {"quest:bound_weight=2"}}),
      HasSubstr(
          "--algorithms quest:bound_weight=2: setting.bound_weight must be a number in [0, 1]"));
  EXPECT_THAT(message({.algorithms = {"quest:weight=1"}}), HasSubstr("weight is not known to"));
  EXPECT_THAT(message({.algorithms = {"quest:weight"}}), HasSubstr("KNOB=NUMBER"));
}

}  // namespace
}  // namespace spindle::eval
