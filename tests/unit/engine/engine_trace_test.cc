// What a request trace says of the requests of an engine.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/read_file.h"
#include "support/engine_world.h"
#include "support/temp_folder.h"

namespace spindle::engine {
namespace {

using nlohmann::json;
using testing::Client;
using testing::EngineWorld;
using testing::MakePrompt;
using testing::MakeRequest;

class EngineTraceTest : public ::testing::Test {
 protected:
  EngineTraceTest() {
    auto trace = kv::KvTrace::Create({.path = folder_.path() + "/run",
                                      .max_file_bytes = kv::kMaxAccessTraceBytes,
                                      .start = TimePoint(Duration(0))});
    EXPECT_TRUE(trace.ok()) << trace.status();
    trace_ = *std::move(trace);
    options_.trace = trace_.get();
  }

  // Serves the requests one after the other and returns the lines of the trace.
  std::vector<json> Record(std::vector<EngineRequest> requests) {
    EngineWorld world(options_);
    for (EngineRequest& request : requests) {
      request.sampling.ignore_eos = true;
      const std::unique_ptr<Client> client = world.Submit(std::move(request));
      EXPECT_NE(client, nullptr);
      world.RunUntilIdle(client);
    }
    trace_->Finish();
    std::vector<json> lines;
    std::string text = ReadFile(folder_.path() + "/run-requests.jsonl", 1U << 20).value();
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
      lines.push_back(json::parse(text.substr(0, end)));
      text.erase(0, end + 1);
    }
    EXPECT_EQ(text, "");
    EXPECT_EQ(lines.size(), requests.size());
    return lines;
  }

  const test::TempFolder folder_;
  std::unique_ptr<kv::KvTrace> trace_;
  EngineWorld::Options options_;
};

TEST_F(EngineTraceTest, LengthsTimesAndWhose) {
  EngineRequest first = MakeRequest(MakePrompt(700, 1), 5);
  first.tenant = "acme";
  first.priority = -40;
  EngineRequest second = MakeRequest(MakePrompt(10, 2), 3);
  second.sampling.num_choices = 2;
  const std::vector<json> lines = Record({first, second});
  EXPECT_EQ(lines[0]["input_length"], 700);
  EXPECT_EQ(lines[0]["output_length"], 5);
  EXPECT_EQ(lines[0]["hash_ids"].size(), 2U);
  EXPECT_EQ(lines[0]["priority"], 70);
  EXPECT_NE(lines[0]["tenant"], "acme");
  EXPECT_EQ(lines[1]["output_length"], 6);  // of both choices
  EXPECT_FALSE(lines[1].contains("tenant"));
  EXPECT_GT(lines[1]["timestamp"], lines[0]["timestamp"]);
}

TEST_F(EngineTraceTest, EqualPromptsHaveEqualIdsAlsoWithoutPrefixCaching) {
  options_.engine.prefix_cache = false;
  const EngineRequest request = MakeRequest(MakePrompt(700, 1), 2);
  EngineRequest several = request;  // its choices share a private chain
  several.sampling.num_choices = 2;
  EngineRequest other_tenant = request;
  other_tenant.prefix_root[0] = 1;
  const std::vector<json> lines = Record({request, request, several, other_tenant});
  EXPECT_EQ(lines[1]["hash_ids"], lines[0]["hash_ids"]);
  EXPECT_EQ(lines[2]["hash_ids"], lines[0]["hash_ids"]);
  EXPECT_NE(lines[3]["hash_ids"][0], lines[0]["hash_ids"][0]);
}

TEST_F(EngineTraceTest, WhoCachesNothingSharesNoId) {
  EngineRequest request = MakeRequest(MakePrompt(700, 1), 2);
  const EngineRequest shared = request;
  request.cache_prompt = false;
  EngineRequest several = request;
  several.sampling.num_choices = 2;
  const std::vector<json> lines = Record({shared, request, request, several});
  for (size_t i = 0; i < lines.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      EXPECT_NE(lines[i]["hash_ids"][0], lines[k]["hash_ids"][0]) << i << ", " << k;
      EXPECT_NE(lines[i]["hash_ids"][1], lines[k]["hash_ids"][1]) << i << ", " << k;
    }
  }
}

}  // namespace
}  // namespace spindle::engine
