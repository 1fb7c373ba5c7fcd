#include "eval/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spindle::eval {
namespace {

using testing::HasSubstr;

EvalPolicy Algorithm(const std::string& name, double budget) {
  return {.role = PolicyRole::kAlgorithm, .algorithm = name, .budget = budget};
}

// Two windows of two steps under dense and one algorithm, on two layers with one head.
ForcedSummary MakeRun() {
  ForcedResult result{.context_tokens = 512, .num_steps = 2};
  result.policies.push_back({.windows = {}, .selections = SelectionRecord(2, 1)});
  result.policies.push_back({.windows = {}, .selections = SelectionRecord(2, 1)});
  const StepScores dense{.kl = 0, .dense_nll = 2, .nll = 2, .same_top = true, .top_overlap = 1};
  result.policies[0].windows = {{dense, dense}, {dense, dense}};
  const StepScores near{
      .kl = 0.1, .dense_nll = 2, .nll = 2.1, .probability_change = 0.3, .same_top = true};
  const StepScores far{
      .kl = 0.5, .dense_nll = 2, .nll = 2.3, .probability_change = -0.4, .same_top = false};
  result.policies[1].windows = {{near, near}, {near, far}};
  const HeadRecord row{.rows = 1,
                       .attended_tokens = 64,
                       .attended_share = 0.125,
                       .measured_rows = 1,
                       .mass = 0.75,
                       .selected_mass = 0.5,
                       .estimated_rows = 1,
                       .overestimate = -0.25};
  result.policies[1].selections.Add(LayerIdx(1), KvHeadIdx(0), row, {});
  std::vector<EvalPolicy> policies;
  policies.emplace_back();
  policies.push_back(Algorithm("quest", 0.125));
  const std::vector<TextWindow> windows = {{.source = "a"}, {.source = "b"}};
  return Summarise(result, policies, windows, 1);
}

TEST(Summary, MeansAreOverWindowsAndSteps) {
  const ForcedSummary run = MakeRun();
  const PolicySummary& quest = run.policies[1];
  EXPECT_DOUBLE_EQ(quest.kl, 0.2);
  EXPECT_DOUBLE_EQ(quest.kl_median, 0.1);
  EXPECT_DOUBLE_EQ(quest.kl_max, 0.5);
  EXPECT_DOUBLE_EQ(quest.top1, 0.75);
  EXPECT_NEAR(quest.ppl_change, std::exp(0.15) - 1, 1e-12);
  EXPECT_NEAR(quest.rms_probability_change, std::sqrt((3 * 0.09 + 0.16) / 4), 1e-12);
  EXPECT_DOUBLE_EQ(quest.kl_interval.low, 0.1);
  EXPECT_DOUBLE_EQ(quest.kl_interval.high, 0.3);
  EXPECT_DOUBLE_EQ(quest.mass_median, 0.75);
  EXPECT_EQ(quest.overestimate, -0.25);
  EXPECT_EQ(run.policies[0].overestimate, std::nullopt) << "makes no estimate";
  EXPECT_DOUBLE_EQ(quest.attended_share, 0.125);
  EXPECT_THAT(quest.head_mass[0], testing::ElementsAre(-1)) << "attends densely";
  EXPECT_THAT(quest.head_mass[1], testing::ElementsAre(0.75));
  EXPECT_DOUBLE_EQ(run.KlOfText(quest, "b").value_or(-1), 0.3);
  EXPECT_EQ(run.KlOfText(quest, "c"), std::nullopt);
  EXPECT_DOUBLE_EQ(run.dense_nll, 2);
}

TEST(Report, JsonHoldsTheFigures) {
  EvalSummary summary{.model = "m", .kernels = "avx2", .seed = 3, .texts = {"a", "b"}};
  summary.forced = {MakeRun()};
  const std::vector<GateResult> gates = {{"kl", "quest", "0.2", "<= 0.1", false}};
  const nlohmann::json report = nlohmann::json::parse(RenderJson(summary, gates));
  EXPECT_EQ(report["forced"][0]["context_tokens"], 512);
  EXPECT_EQ(report["forced"][0]["window_texts"][1], "b");
  const nlohmann::json& quest = report["forced"][0]["policies"][1];
  EXPECT_EQ(quest["policy"], "quest@12.5%");
  EXPECT_EQ(quest["role"], "algorithm");
  EXPECT_DOUBLE_EQ(quest["kl_mean"], 0.2);
  EXPECT_DOUBLE_EQ(quest["head_mass"][1][0], 0.75);
  EXPECT_EQ(report["gates"][0]["passed"], false);
}

TEST(Report, MarkdownHasTablesAndFailedGates) {
  EvalSummary summary{.model = "m", .kernels = "avx2", .seed = 3, .texts = {"a", "b"}};
  summary.forced = {MakeRun()};
  const std::vector<GateResult> gates = {{"kl", "quest", "0.2", "<= 0.1", false}};
  const std::string report = RenderMarkdown(summary, gates);
  EXPECT_THAT(report, HasSubstr("| quest@12.5% | 12.5 % | 0.2000 | 0.1000 … 0.3000 |"));
  EXPECT_THAT(report, HasSubstr("| quest@12.5% | 0.1000 | 0.3000 |")) << "by text";
  EXPECT_THAT(report, HasSubstr("1.0 (0.750)"));
  summary.texts = {"a", "unread"};
  EXPECT_THAT(RenderMarkdown(summary, {}), HasSubstr("| quest@12.5% | 0.1000 | – |"));
  EXPECT_THAT(report, HasSubstr("| FAIL | kl | quest | 0.2 | <= 0.1 |"));
}

}  // namespace
}  // namespace spindle::eval
