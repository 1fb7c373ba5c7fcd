#include "config/sparse_preset.h"

#include <fstream>

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace spindle::config {
namespace {

absl::StatusOr<engine::SparseRequest> Read(const std::string& text) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/preset.yaml";
  std::ofstream(path) << text;
  return ReadSparsePreset(path);
}

TEST(SparsePresetTest, HasTheMembersOfARequest) {
  const absl::StatusOr<engine::SparseRequest> preset = Read(
      "# of a model\n"
      "algorithm: shadowkv\n"
      "top_p_mass: 0.5\n"
      "dense_layers: first:2\n"
      "min_context: 0x400\n"
      "fallback: dense\n"
      "layer_multipliers: [1, 0.5]\n"
      "params:\n"
      "  outlier_chunks: 16\n");
  // Numbers are JSON's.
  EXPECT_FALSE(preset.ok());
  const absl::StatusOr<engine::SparseRequest> good = Read(
      "algorithm: 'shadowkv'\n"
      "top_p_mass: 0.5\n"
      "dense_layers: first:2\n"
      "min_context: 1024\n"
      "fallback: dense\n"
      "layer_multipliers: [1, 0.5]\n"
      "params:\n"
      "  outlier_chunks: 16\n");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->algorithm, "shadowkv");
  EXPECT_EQ(good->top_p_mass, 0.5);
  EXPECT_EQ(good->dense_layers, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(good->min_context, 1024U);
  EXPECT_EQ(good->dense_fallback, true);
  EXPECT_EQ(good->layer_multipliers, (std::vector<float>{1, 0.5}));
  EXPECT_EQ(good->params, (std::vector<std::pair<std::string, double>>{{"outlier_chunks", 16}}));
}

TEST(SparsePresetTest, RefusesWhatARequestMayNotSay) {
  for (const char* text : {"",
                           "- algorithm\n",
                           "algorithm: [\n",
                           "algorithm: telepathy\n",
                           "budget: 5\n",
                           "budget_tokens: '5'\n",
                           "budget_tokens: 5\nbudget_fraction: 0.5\n",
                           "reselect_interval: 65\n",
                           "dense_layers: [[[[[[1]]]]]]\n",
                           "a: &a [*a]\n"}) {
    const absl::Status status = Read(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find("preset.yaml: "), std::string_view::npos) << status;
  }
  EXPECT_FALSE(ReadSparsePreset("/nonexistent/preset.yaml").ok());
}

TEST(SparsePresetTest, TextReadsAsItWasMeant) {
  const engine::SparseRequest request = {
      .algorithm = "shadowkv",
      .budget_fraction = 0.125,
      .sink_tokens = 8,
      .recent_tokens = 32,
      .min_context = 1500,
      .dense_layers = std::vector<int32_t>{0, -1},
      .layer_multipliers = {1, 0.1F},
      .head_multipliers = {2},
      .top_p_mass = 0.9,
      .dense_fallback = true,
      .min_mass = 0.3,
      .reselect_interval = 4,
      .params = {{"outlier_chunks", 16}},
      .prefill = "xattention",
      .prefill_params = {{"stride", 8}, {"threshold", 0.95}},
  };
  const std::string text = SparsePresetText(request);
  const absl::StatusOr<engine::SparseRequest> again = Read(text);
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
  EXPECT_EQ(SparsePresetText(*again), text);
  EXPECT_EQ(again->budget_fraction, request.budget_fraction);
  EXPECT_EQ(again->dense_layers, request.dense_layers);
  EXPECT_EQ(again->layer_multipliers, request.layer_multipliers);
  EXPECT_EQ(again->dense_fallback, request.dense_fallback);
  EXPECT_EQ(again->params, request.params);
  EXPECT_EQ(again->prefill_params, request.prefill_params);
  EXPECT_EQ(SparsePresetText({.algorithm = "dense"}), "algorithm: dense\n");
  EXPECT_EQ(SparsePresetText({}), "");
}

}  // namespace
}  // namespace spindle::config
