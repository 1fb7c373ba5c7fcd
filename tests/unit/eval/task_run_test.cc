// Scores of task cells.
#include "eval/task_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/summary.h"

namespace spindle::eval {
namespace {

TaskCell Cell(double dense_nll, double dense_string, double control_nll) {
  TaskCell cell{.family = "copy",
                .context_tokens = 1024,
                .control_nll = {control_nll, control_nll},
                .policies = {}};
  cell.policies.push_back({{.nll = dense_nll, .string_score = dense_string},
                           {.nll = dense_nll, .string_score = dense_string}});
  return cell;
}

TEST(TaskCell, RetentionIsBetweenControlAndDense) {
  TaskCell cell = Cell(1, 1, 5);
  cell.policies.push_back({{.nll = 2}, {.nll = 4}});
  EXPECT_DOUBLE_EQ(cell.Retention(0), 1);
  EXPECT_DOUBLE_EQ(cell.Retention(1), 0.5);
}

TEST(TaskCell, CountsOnlyWhatDenseCanDo) {
  EXPECT_TRUE(Cell(1, 0, 1.5).IsAdmissible());
  EXPECT_FALSE(Cell(1, 0, 1.4).IsAdmissible());
  EXPECT_TRUE(Cell(1, 0.4, 1.4).IsAdmissible());
  EXPECT_FALSE(Cell(1, 0.39, 1.4).IsAdmissible());
  EXPECT_FALSE(Cell(1.5, 1, 1.4).IsAdmissible()) << "nothing was found in the context";
}

TEST(TaskOptions, AreCheckedBeforeARun) {
  const auto refusal = [](const char* family, uint32_t context, uint32_t generated) {
    TaskOptions options;
    options.families = {*FindTaskFamily(family)};
    options.generated_tokens = generated;
    return std::string(CheckTaskOptions(options, context).message());
  };
  EXPECT_EQ(refusal("passkey", 256, 0), "");
  EXPECT_EQ(refusal("passkey", 320, 64), "");
  EXPECT_THAT(refusal("passkey", 319, 64), testing::HasSubstr("--context of at least 320"));
  EXPECT_THAT(refusal("passkey", 319, 63), testing::HasSubstr("--generated of 0 or at least 64"));
  EXPECT_EQ(refusal("cwe", 4096, 0), "");
  EXPECT_THAT(refusal("cwe", 4096, 512), testing::HasSubstr("not with --generated"));
}

TEST(TaskCell, SummaryComparesSamplesInPairs) {
  TaskCell cell{.family = "vt", .context_tokens = 64, .control_nll = {}, .policies = {{}, {}}};
  for (int i = 0; i < 6; ++i) {
    cell.control_nll.push_back(4);
    cell.policies[0].push_back({.nll = 1, .token_accuracy = 1, .string_score = 1});
    cell.policies[1].push_back({.nll = 3, .token_accuracy = 0.25, .string_score = 0.5});
  }
  const EvalPolicy dense;
  const EvalPolicy sparse{.role = PolicyRole::kAlgorithm, .algorithm = "quest", .budget = 0.06};
  const std::vector<const EvalPolicy*> policies = {&dense, &sparse};
  const TaskSummary summary = Summarise(cell, policies);
  ASSERT_EQ(summary.rows.size(), 2U);
  EXPECT_EQ(summary.rows[1].policy, "quest@6%");
  EXPECT_DOUBLE_EQ(summary.rows[1].token_accuracy, 0.25);
  EXPECT_DOUBLE_EQ(summary.rows[1].string_score, 0.5);
  EXPECT_NEAR(summary.rows[1].retention, 1.0 / 3, 1e-12);
  EXPECT_NEAR(summary.rows[1].mcnemar_p, 2.0 / 64, 1e-12) << "six lost, none won";
  EXPECT_EQ(summary.rows[0].mcnemar_p, 1);
}

}  // namespace
}  // namespace spindle::eval
