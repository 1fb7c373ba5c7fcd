#include "serving/model_listing.h"

#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/algorithm_facts.h"
#include "serving/sparse_names.h"
#include "unit/serving/serving_fakes.h"

namespace spindle::serving {
namespace {

using nlohmann::json;

TEST(ModelListing, EveryListedAlgorithmIsAccepted) {
  const FakeService service;
  const json list = json::parse(service.api.ListModels().value());
  const json& sparse = list["data"][0]["spindle"]["sparse"];
  ASSERT_FALSE(sparse["algorithms"].empty());
  for (const json& algorithm : sparse["algorithms"]) {
    const json body = {
        {"prompt", "hi"},
        {"spindle", {{"sparse", {{"algorithm", algorithm["name"]}}}}},
    };
    const auto prepared = service.Prepare(Endpoint::kCompletions, body.dump());
    EXPECT_TRUE(prepared.ok()) << algorithm["name"];
  }
  EXPECT_EQ(sparse["default"], sparse["algorithms"][0]["name"]);
  for (const std::string_view name : engine::KnownAlgorithms()) {
    EXPECT_FALSE(CheckSparseAlgorithm(name, "x").has_value()) << name;
  }
  EXPECT_EQ(CheckSparseAlgorithm("telepathy", "x")->code, "invalid_value");
}

TEST(ModelListing, AlgorithmsWithoutTheirWeightsAreNeitherListedNorAccepted) {
  const FakeService service;
  const json list = json::parse(service.api.ListModels().value());
  for (const std::string_view name : {"seer_r"}) {
    for (const json& algorithm : list["data"][0]["spindle"]["sparse"]["algorithms"]) {
      EXPECT_NE(algorithm["name"], name);
      EXPECT_EQ(algorithm["extra_weights"], false);
    }
    const json body = {{"prompt", "hi"}, {"spindle", {{"sparse", {{"algorithm", name}}}}}};
    const auto prepared = service.Prepare(Endpoint::kCompletions, body.dump());
    ASSERT_FALSE(prepared.ok());
    EXPECT_EQ(prepared.error().code, "sparse_algorithm_unavailable");
    EXPECT_EQ(prepared.error().param, "spindle.sparse.algorithm");
  }
}

TEST(ModelListing, WhatIsListedOfPrefillIsAccepted) {
  const FakeService service;
  const json list = json::parse(service.api.ListModels().value());
  const json& prefill = list["data"][0]["spindle"]["sparse"]["prefill"];
  EXPECT_EQ(prefill["default"], "dense");
  ASSERT_EQ(prefill["methods"].size(), 2U);
  for (const json& method : prefill["methods"]) {
    json sparse = {{"prefill", method["name"]}, {"prefill_params", json::object()}};
    for (const json& knob : method["knobs"]) {
      sparse["prefill_params"][knob["name"].get<std::string>()] = knob["max"];
    }
    const json body = {{"prompt", "hi"}, {"spindle", {{"sparse", sparse}}}};
    EXPECT_TRUE(service.Prepare(Endpoint::kCompletions, body.dump()).ok()) << method["name"];
    sparse["prefill_params"] = {{"depth", 1}};
    const json wrong = {{"prompt", "hi"}, {"spindle", {{"sparse", sparse}}}};
    const auto refused = service.Prepare(Endpoint::kCompletions, wrong.dump());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, "unknown_parameter");
    EXPECT_EQ(refused.error().param, "spindle.sparse.prefill_params.depth");
  }
  EXPECT_EQ(CheckSparsePrefill("telepathy", "x")->code, "invalid_value");
}

TEST(ModelListing, AlgorithmsTellWhatTheyAre) {
  const FakeService service;
  const json list = json::parse(service.api.ListModels().value());
  std::map<std::string, json> algorithms;
  for (const json& algorithm : list["data"][0]["spindle"]["sparse"]["algorithms"]) {
    algorithms[algorithm["name"]] = algorithm;
  }
  EXPECT_EQ(algorithms["shadowkv"]["partition"], "chunk");
  EXPECT_EQ(algorithms["shadowkv"]["mass_estimate"], true);
  const json outliers = {
      {"name", "outlier_chunks"}, {"type", "integer"}, {"min", 0}, {"max", 4096}, {"default", 48}};
  EXPECT_EQ(algorithms["shadowkv"]["knobs"][1], outliers);
  EXPECT_EQ(algorithms["quest"]["partition"], "block");
  EXPECT_EQ(algorithms["quest"]["mass_estimate"], false);
  EXPECT_EQ(algorithms["quest"]["knobs"][0]["default"], 16);
  EXPECT_EQ(algorithms["streaming"]["partition"], nullptr);
  EXPECT_EQ(algorithms["streaming"]["knobs"], json::array());
}

}  // namespace
}  // namespace spindle::serving
