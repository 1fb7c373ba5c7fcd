// What requests and the server's defaults together mean for a model.
#include "engine/sparse_request.h"

#include <limits>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spindle::engine {
namespace {

constexpr kv::KvGeometry kModel{
    .num_layers = 8, .num_kv_heads = 2, .head_dim = 64, .type = DType::kBF16};

absl::StatusOr<SparseDecode> Resolve(const SparseRequest& wishes,
                                     const SparseRequest& defaults = {}) {
  return ResolveSparse(wishes, defaults, kModel, {});
}

sparse::SparseSettings SettingsFor(const SparseRequest& wishes,
                                   const SparseRequest& defaults = {}) {
  const absl::StatusOr<SparseDecode> decode = Resolve(wishes, defaults);
  EXPECT_TRUE(decode.ok()) << decode.status();
  return decode->policy->settings();
}

TEST(SparseRequestTest, AMassIsLimitedByABudgetOfItsOwnOnly) {
  EXPECT_EQ(SettingsFor({.algorithm = "shadowkv", .top_p_mass = 0.9}).budget_fraction, 1);
  EXPECT_EQ(SettingsFor({.algorithm = "shadowkv", .top_p_mass = 0.9}, {.budget_tokens = 64})
                .budget_fraction,
            1);
  const sparse::SparseSettings capped =
      SettingsFor({.algorithm = "shadowkv", .budget_tokens = 96, .top_p_mass = 0.9});
  EXPECT_EQ(capped.budget_tokens, 96U);
  EXPECT_EQ(capped.budget_fraction, 0);
  // The server's mass under the server's budget, and under the request's.
  const SparseRequest server{.algorithm = "shadowkv", .budget_tokens = 64, .top_p_mass = 0.8};
  EXPECT_EQ(SettingsFor({}, server).budget_tokens, 64U);
  EXPECT_EQ(SettingsFor({.budget_tokens = 32}, server).budget_tokens, 32U);
  EXPECT_EQ(SettingsFor({.budget_tokens = 32}, server).top_p_mass, 0.8);
}

TEST(SparseRequestTest, AllOfTheMassIsADenseStep) {
  const uint32_t never = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(SettingsFor({.algorithm = "shadowkv", .top_p_mass = 1}).min_context, never);
  EXPECT_NE(
      SettingsFor({.algorithm = "shadowkv", .budget_tokens = 64, .top_p_mass = 1}).min_context,
      never);
}

TEST(SparseRequestTest, TheGuardHasADefaultAndNeedsItsFallback) {
  EXPECT_EQ(SettingsFor({.algorithm = "shadowkv"}).min_mass, 0);
  EXPECT_EQ(SettingsFor({.algorithm = "shadowkv", .dense_fallback = true}).min_mass, 0.5);
  EXPECT_EQ(
      SettingsFor({.algorithm = "shadowkv", .dense_fallback = true, .min_mass = 0.7}).min_mass,
      0.7);
  const SparseRequest server{.algorithm = "shadowkv", .dense_fallback = true, .min_mass = 0.6};
  EXPECT_EQ(SettingsFor({}, server).min_mass, 0.6);
  EXPECT_EQ(SettingsFor({.dense_fallback = false}, server).min_mass, 0);
  EXPECT_EQ(SettingsFor({.min_mass = 0.9}, server).min_mass, 0.9);
  EXPECT_EQ(SettingsFor({.algorithm = "quest"}, server).min_mass, 0);  // it has no estimate
}

TEST(SparseRequestTest, KnobsAreThoseOfTheAlgorithm) {
  EXPECT_EQ(SettingsFor({.algorithm = "shadowkv"}).knobs, (std::vector<double>{8, 48}));
  const SparseRequest wishes{.algorithm = "shadowkv",
                             .params = {{"outlier_chunks", 8}, {"chunk_size", 8}}};
  EXPECT_EQ(SettingsFor(wishes).knobs, (std::vector<double>{8, 8}));
  const SparseRequest server{.algorithm = "shadowkv", .params = {{"outlier_chunks", 2}}};
  EXPECT_EQ(SettingsFor({}, server).knobs[1], 2);
  const SparseRequest preset{.algorithm = "retroinfer", .params = {{"estimation_fraction", 0.5}}};
  const SparseRequest other{.algorithm = "auto", .params = {{"segment_tokens", 1024}}};
  EXPECT_EQ(SettingsFor(other, preset).knobs, (std::vector<double>{16, 1024, 0.5}));
  EXPECT_EQ(SettingsFor({.params = {{"estimation_fraction", 0}}}, preset).knobs[2], 0);
  EXPECT_EQ(SettingsFor(Overlay(other, preset)).knobs, (std::vector<double>{16, 1024, 0.5}));
  EXPECT_EQ(SettingsFor({.algorithm = "quest"}, server).knobs, (std::vector<double>{16, 1}));
}

TEST(SparseRequestTest, ADefaultThatAnAlgorithmCannotFollowIsForTheOthers) {
  const SparseRequest server{.sink_tokens = 32};
  EXPECT_EQ(SettingsFor({.algorithm = "retroinfer"}, server).sink_tokens, 4U);
  EXPECT_EQ(SettingsFor({.algorithm = "quest"}, server).sink_tokens, 32U);
  // What is said of retroinfer itself is refused.
  for (const absl::StatusOr<SparseDecode>& own :
       {Resolve({.algorithm = "retroinfer", .sink_tokens = 32}),
        Resolve({}, {.algorithm = "retroinfer", .sink_tokens = 32})}) {
    EXPECT_EQ(own.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(std::string(own.status().message()).starts_with("sink_tokens ")) << own.status();
  }
}

TEST(SparseRequestTest, RefusalsNameTheField) {
  struct Row {
    SparseRequest wishes;
    absl::StatusCode code;
    const char* begins;
  };

  const Row rows[] = {
      {{.algorithm = "nothing"}, absl::StatusCode::kNotFound, "no attention"},
      {{.algorithm = "quest", .top_p_mass = 0.9},
       absl::StatusCode::kFailedPrecondition,
       "top_p_mass "},
      {{.top_p_mass = 0.9}, absl::StatusCode::kFailedPrecondition, "top_p_mass "},
      {{.budget_tokens = 256}, absl::StatusCode::kFailedPrecondition, "budget_tokens needs "},
      {{.algorithm = "auto", .budget_fraction = 0.5},
       absl::StatusCode::kFailedPrecondition,
       "budget_fraction needs "},
      {{.layer_multipliers = {2}},
       absl::StatusCode::kFailedPrecondition,
       "layer_multipliers needs "},
      {{.algorithm = "dense", .head_multipliers = {2}},
       absl::StatusCode::kFailedPrecondition,
       "head_multipliers has no meaning "},
      {{.reselect_interval = 2}, absl::StatusCode::kFailedPrecondition, "reselect_interval needs "},
      {{.algorithm = "quest", .dense_fallback = true},
       absl::StatusCode::kFailedPrecondition,
       "fallback "},
      {{.algorithm = "shadowkv", .min_mass = 0.5},
       absl::StatusCode::kFailedPrecondition,
       "min_mass "},
      {{.algorithm = "shadowkv", .top_p_mass = 1.5},
       absl::StatusCode::kInvalidArgument,
       "top_p_mass "},
      {{.algorithm = "quest", .reselect_interval = 65},
       absl::StatusCode::kInvalidArgument,
       "reselect_interval "},
      {{.algorithm = "quest", .params = {{"rank", 160}}},
       absl::StatusCode::kUnimplemented,
       "params.rank "},
      {{.algorithm = "quest", .params = {{"page_tokens", 8}}},
       absl::StatusCode::kInvalidArgument,
       "params.page_tokens "},
      {{.algorithm = "shadowkv", .params = {{"outlier_chunks", 1.5}}},
       absl::StatusCode::kInvalidArgument,
       "params.outlier_chunks "},
      {{.algorithm = "dense", .params = {{"page_tokens", 16}}},
       absl::StatusCode::kUnimplemented,
       "params.page_tokens "},
  };
  for (const Row& row : rows) {
    const absl::StatusOr<SparseDecode> decode = Resolve(row.wishes);
    EXPECT_EQ(decode.status().code(), row.code) << row.begins;
    EXPECT_TRUE(std::string(decode.status().message()).starts_with(row.begins)) << decode.status();
  }
}

TEST(SparseRequestTest, ADenseServerObeysWhatDoesNotNarrow) {
  const SparseRequest wishes{.sink_tokens = 8,
                             .recent_tokens = 8,
                             .min_context = 0,
                             .dense_layers = std::vector<int32_t>{0, -1}};
  EXPECT_TRUE(Resolve(wishes).ok());
  // Defaults wait for requests that name an algorithm.
  EXPECT_TRUE(Resolve({}, {.budget_tokens = 64}).ok());
  EXPECT_EQ(SettingsFor({.algorithm = "quest"}, {.budget_tokens = 64}).budget_tokens, 64U);
  const absl::Status refused = Resolve({.budget_tokens = 64}).status();
  EXPECT_TRUE(std::string(refused.message()).ends_with("streaming, quest, shadowkv, retroinfer"))
      << refused;
}

TEST(SparseRequestTest, PrefillIsOfTheRequestOrThePreset) {
  const SparseRequest preset{.prefill = "xattention", .prefill_params = {{"threshold", 0.8}}};
  EXPECT_EQ(Resolve({})->prefill, nullptr);
  EXPECT_EQ(Resolve({.prefill = "dense"}, preset)->prefill, nullptr);
  const auto knobs = [](const absl::StatusOr<SparseDecode>& decode) {
    const std::span<const double> values = decode->prefill->knobs();
    return std::vector<double>(values.begin(), values.end());
  };
  EXPECT_EQ(knobs(Resolve({}, preset)), (std::vector<double>{128, 16, 0.8, 128, 0}));
  EXPECT_EQ(Resolve({}, preset)->PrefillName(), "xattention");
  EXPECT_EQ(knobs(Resolve({.prefill_params = {{"stride", 8}}}, preset)),
            (std::vector<double>{128, 8, 0.8, 128, 0}));
  EXPECT_EQ(knobs(Resolve({.prefill = "tri_shape"}, preset)),
            (std::vector<double>{128, 1920, 128}));
  EXPECT_EQ(knobs(Resolve(Overlay({.prefill_params = {{"stride", 8}}}, preset))),
            (std::vector<double>{128, 8, 0.8, 128, 0}));
  // With any algorithm, and its dense layers are dense.
  const absl::StatusOr<SparseDecode> both = Resolve(
      {.algorithm = "quest", .dense_layers = std::vector<int32_t>{-1}, .prefill = "xattention"});
  EXPECT_NE(both->policy, nullptr);
  EXPECT_TRUE(both->prefill->IsDenseLayer(LayerIdx(static_cast<uint16_t>(kModel.num_layers - 1))));
  EXPECT_FALSE(both->prefill->IsDenseLayer(LayerIdx(0)));
}

TEST(SparseRequestTest, RefusalsOfPrefillNameTheKnob) {
  struct Row {
    SparseRequest wishes;
    absl::StatusCode code;
    const char* message;
  };
  using enum absl::StatusCode;
  for (const Row& row :
       {Row{{.prefill_params = {{"stride", 8}}},
            kFailedPrecondition,
            "prefill_params has no meaning where the prefill is 'dense'"},
        Row{{.prefill = "xattention", .prefill_params = {{"recent", 8}}},
            kUnimplemented,
            "prefill_params.recent is not known to 'xattention'"},
        Row{{.prefill = "xattention", .prefill_params = {{"threshold", 1.5}}},
            kInvalidArgument,
            "prefill_params.threshold must be a number in [0, 1], got 1.5"},
        Row{{.prefill = "xattention", .prefill_params = {{"stride", 12}}},
            kInvalidArgument,
            "prefill_params.stride must be 8 or 16, got 12"},
        Row{{.prefill = "tri_shape", .prefill_params = {{"recent", 0}}},
            kInvalidArgument,
            "prefill_params.recent must be a whole number in [1, 524288], got 0"}}) {
    const absl::StatusOr<SparseDecode> decode = Resolve(row.wishes);
    EXPECT_EQ(decode.status().code(), row.code) << row.message;
    EXPECT_EQ(decode.status().message(), row.message);
  }
}

TEST(SparseRequestTest, WhateverDecidesChoicesIsPartOfTheMethod) {
  const SparseRequest plain{.algorithm = "shadowkv"};
  const SparseRequest others[] = {
      {.algorithm = "shadowkv", .top_p_mass = 0.9},
      {.algorithm = "shadowkv", .dense_fallback = true},
      {.algorithm = "shadowkv", .dense_fallback = true, .min_mass = 0.6},
      {.algorithm = "shadowkv", .reselect_interval = 2},
      {.algorithm = "shadowkv", .params = {{"outlier_chunks", 47}}},
  };
  std::vector<MethodDigest> methods = {Resolve(plain)->method};
  for (const SparseRequest& other : others) {
    methods.push_back(Resolve(other)->method);
  }
  for (size_t i = 0; i < methods.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(methods[i], methods[j]) << i << " " << j;
    }
  }
  SparseRequest with_statistics = plain;
  with_statistics.estimates_mass = true;
  EXPECT_EQ(Resolve(with_statistics)->method, methods[0]);
}

TEST(SparseRequestTest, ChoicesByInt8IndexesAreAMethodOfTheirOwn) {
  const auto method = [](const char* algorithm, sparse::IndexType type) {
    const sparse::AlgorithmSet algorithms(type);
    return ResolveSparse({.algorithm = algorithm}, {}, kModel, algorithms)->method;
  };
  for (const char* algorithm : {"quest", "shadowkv", "retroinfer"}) {
    EXPECT_NE(method(algorithm, sparse::IndexType::kInt8),
              method(algorithm, sparse::IndexType::kBf16))
        << algorithm;
  }
  EXPECT_EQ(method("streaming", sparse::IndexType::kInt8),
            method("streaming", sparse::IndexType::kBf16))
      << "it has no index";
}

}  // namespace
}  // namespace spindle::engine
