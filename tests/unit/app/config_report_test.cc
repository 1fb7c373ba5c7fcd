#include "app/config_report.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spindle::app {
namespace {

using Json = nlohmann::json;

std::vector<config::EffectiveOption> Options() {
  return {{"max-num-seqs", "8", "flag", uint64_t{8}},
          {"kv-host-bytes", std::nullopt, "default", {}},
          {"api-key", "********", "environment", std::string("********")},
          {"metrics", std::nullopt, "default", true},
          {"served-model-name", "a,b", "file", std::vector<std::string>{"a", "b"}},
          {"watchdog", std::nullopt, "default", 60.0}};
}

TEST(ConfigReport, ShowsWhatWasAskedAndWhatItIs) {
  const ConfigReport report(Options());
  const Json json = Json::parse(report.Json());
  EXPECT_EQ(json["max-num-seqs"], Json::parse(R"({"value":8,"given":"8","source":"flag"})"));
  EXPECT_EQ(json["metrics"], Json::parse(R"({"value":true,"given":null,"source":"default"})"));
  EXPECT_EQ(json["served-model-name"]["value"], Json::parse(R"(["a","b"])"));
  EXPECT_EQ(json["watchdog"]["value"], 60.0);
  EXPECT_EQ(json["kv-host-bytes"]["value"], Json());
}

TEST(ConfigReport, WhatWasLeftToTheMachineIsFilledIn) {
  ConfigReport report(Options());
  report.Resolve({{"kv-host-bytes", uint64_t{1} << 30}});
  const Json json = Json::parse(report.Json());
  EXPECT_EQ(json["kv-host-bytes"]["value"], uint64_t{1} << 30);
  EXPECT_EQ(json["kv-host-bytes"]["given"], Json());
  EXPECT_EQ(json["kv-host-bytes"]["source"], "default");
}

TEST(ConfigReport, TheLogShowsValuesOnly) {
  const Json values = Json::parse(ValuesJson(Options()));
  EXPECT_EQ(values["max-num-seqs"], 8);
  EXPECT_FALSE(values.contains("kv-host-bytes"));
  EXPECT_EQ(Json::parse(ValuesJson(ResolvedOptions{{"threads", uint64_t{2}}, {"isa", {}}})),
            Json::parse(R"({"threads":2})"));
}

TEST(ConfigReport, BytesThatAreNoUtf8AreShownAsSuch) {
  const ConfigReport report({{"model", "\xff.gguf", "flag", std::string("\xff.gguf")}});
  EXPECT_EQ(Json::parse(report.Json())["model"]["value"], "\xEF\xBF\xBD.gguf");
}

}  // namespace
}  // namespace spindle::app
