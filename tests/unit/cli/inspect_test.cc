#include "cli/inspect.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spindle::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string ModelPath() {
  return SPINDLE_TEST_GOLDEN_DIR "/models/llama.gguf";
}

std::string Print(const InspectOptions& options) {
  ::testing::internal::CaptureStdout();
  const absl::Status status = Inspect(options);
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

InspectOptions Options() {
  InspectOptions options;
  options.load.model_path = ModelPath();
  return options;
}

TEST(Inspect, JsonNamesShapeAndKv) {
  InspectOptions options = Options();
  options.json = true;
  const Json json = Json::parse(Print(options));
  EXPECT_EQ(json["architecture"], "llama");
  EXPECT_GT(json["parameters"], 0);
  EXPECT_FALSE(json.contains("tensors"));
  const uint64_t per_token = json["kv_bytes_per_token"];
  EXPECT_EQ(per_token,
            json["layers"].get<uint64_t>() * json["kv_heads"].get<uint64_t>() *
                json["head_dim"].get<uint64_t>() * 2 * 2);
  EXPECT_EQ(json["kv_bytes_per_full_sequence"], per_token * json["context"].get<uint64_t>());
  options.tensors = true;
  EXPECT_GT(Json::parse(Print(options))["tensors"].size(), 5U);
}

TEST(Inspect, ThePlanIsTheSumOfItsParts) {
  InspectOptions options = Options();
  options.json = true;
  options.load.kv.host_bytes = uint64_t{64} << 20;
  const Json plan = Json::parse(Print(options))["memory_plan"];
  uint64_t sum = 0;
  bool has_kv = false;
  for (const Json& part : plan["parts"]) {
    sum += part["bytes"].get<uint64_t>();
    if (part["name"] == "KV in host memory") {
      EXPECT_EQ(part["option"], "--kv-host-bytes");
      EXPECT_EQ(part["bytes"], uint64_t{64} << 20);
      has_kv = true;
    }
  }
  EXPECT_TRUE(has_kv);
  EXPECT_EQ(plan["total_bytes"], sum);
  EXPECT_LT(plan["limit_bytes"], plan["available_bytes"]);
  EXPECT_EQ(plan["fits"], sum <= plan["limit_bytes"].get<uint64_t>());
}

TEST(Inspect, APlanThatDoesNotFitIsShown) {
  InspectOptions options = Options();
  options.load.kv.host_bytes = uint64_t{1} << 50;
  EXPECT_THAT(Print(options), HasSubstr("does not fit"));
}

TEST(Inspect, TextHasATable) {
  InspectOptions options = Options();
  options.tensors = true;
  const std::string text = Print(options);
  EXPECT_THAT(text, HasSubstr("architecture                llama\n"));
  EXPECT_THAT(text, HasSubstr("memory plan of spindle serve\n"));
  EXPECT_THAT(text, HasSubstr("KV in host memory"));
  EXPECT_THAT(text, HasSubstr("--max-body-size\n"));
  EXPECT_THAT(text, HasSubstr("token_embd.weight"));
}

TEST(Inspect, WrongOptionsAreRefused) {
  InspectOptions options = Options();
  options.load.isa = "mmx";
  EXPECT_THAT(std::string(Inspect(options).message()), HasSubstr("--isa mmx"));
  options = Options();
  options.load.model_path = "/nonexistent.gguf";
  EXPECT_FALSE(Inspect(options).ok());
}

}  // namespace
}  // namespace spindle::cli
