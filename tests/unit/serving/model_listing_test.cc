#include "serving/model_listing.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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
  for (const std::string_view name : kMissingAlgorithms) {
    EXPECT_TRUE(CheckSparseAlgorithm(name, "x").has_value()) << name;
  }
}

}  // namespace
}  // namespace spindle::serving
