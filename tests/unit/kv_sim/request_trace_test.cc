#include "kv/sim/request_trace.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace spindle::kv::sim {
namespace {

TEST(RequestTrace, ReadsTheFieldsOfMooncakesRelease) {
  const auto trace = ParseRequestTrace(
      R"({"timestamp": 0, "input_length": 513, "output_length": 7, "hash_ids": [90, 4]})"
      "\n\n"
      R"({"timestamp": 27482, "input_length": 512, "output_length": 0, "hash_ids": [90]})"
      "\r\n"
      R"({"timestamp": 27482, "input_length": 0, "output_length": 1, "hash_ids": [], "more": 1})");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), 3U);
  EXPECT_EQ(trace->num_units, 2U);
  EXPECT_EQ(trace->units, (std::vector<uint32_t>{0, 1, 0}));
  EXPECT_EQ(trace->requests[0].input_tokens, 513U);
  EXPECT_EQ(trace->requests[0].output_tokens, 7U);
  EXPECT_EQ(trace->requests[1].timestamp_ms, 27482U);
  EXPECT_EQ(trace->requests[1].priority, 35U);
  EXPECT_EQ(trace->UnitsOf(trace->requests[1]).size(), 1U);
  EXPECT_TRUE(trace->UnitsOf(trace->requests[2]).empty());
}

TEST(RequestTrace, TenantsShareNoUnits) {
  const auto trace = ParseRequestTrace(
      R"({"timestamp":0,"input_length":9,"output_length":1,"hash_ids":[5],"tenant":"a"})"
      "\n"
      R"({"timestamp":0,"input_length":9,"output_length":1,"hash_ids":[5],"tenant":"b","priority":90})"
      "\n"
      R"({"timestamp":0,"input_length":9,"output_length":1,"hash_ids":[5],"tenant":"a"})"
      "\n"
      R"({"timestamp":0,"input_length":9,"output_length":1,"hash_ids":[5]})");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->units, (std::vector<uint32_t>{0, 1, 0, 2}));
  EXPECT_EQ(trace->requests[1].tenant, 2U);
  EXPECT_EQ(trace->requests[1].priority, 90U);
  EXPECT_EQ(trace->requests[3].tenant, 0U);
}

TEST(RequestTrace, NamesTheLineAndTheFieldThatIsWrong) {
  const std::string good =
      R"({"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [1]})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {"\xff\xfe", "not a JSON object"},
      {R"({"input_length": 1, "output_length": 1, "hash_ids": [1]})", "timestamp must be"},
      {R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]})",
       "timestamp must be"},
      {R"({"timestamp": 4, "input_length": 1, "output_length": 1, "hash_ids": [1]})",
       "timestamp must be at least that of the line before"},
      {R"({"timestamp": 5, "input_length": 1.5, "output_length": 1, "hash_ids": [1]})",
       "input_length must be a whole number in 0..134217728"},
      {R"({"timestamp": 5, "input_length": 134217729, "output_length": 1, "hash_ids": [1]})",
       "input_length must be"},
      {R"({"timestamp": 5, "input_length": 1, "output_length": "1", "hash_ids": [1]})",
       "output_length must be"},
      {R"({"timestamp": 5, "input_length": 1, "output_length": 1})", "hash_ids must be"},
      {R"({"timestamp": 5, "input_length": 513, "output_length": 1, "hash_ids": [1]})",
       "one id per 512 tokens of input_length: 2"},
      {R"({"timestamp": 5, "input_length": 513, "output_length": 1, "hash_ids": [1, 1]})",
       "distinct"},
      {R"({"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [-1]})",
       "whole numbers"},
      {R"({"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [1], "tenant": 3})",
       "tenant must be"},
      {R"({"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [1], "priority": 101})",
       "priority must be a whole number in 0..100"}};
  for (const auto& [line, message] : cases) {
    const auto trace = ParseRequestTrace(good + "\n" + line + "\n");
    ASSERT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument) << line;
    const std::string text(trace.status().message());
    EXPECT_EQ(text.rfind("line 2: ", 0), 0U) << text;
    EXPECT_NE(text.find(message), std::string::npos) << text;
  }
}

TEST(RequestTrace, ACutLineIsNoRequest) {
  const std::string request =
      R"({"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [1], "cut": false})"
      "\n";
  const std::string cut =
      R"({"timestamp": 5, "input_length": 0, "output_length": 0, "hash_ids": [], "cut": true})"
      "\n";
  EXPECT_FALSE(ParseRequestTrace(request)->is_cut);
  const auto trace = ParseRequestTrace(request + cut);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_TRUE(trace->is_cut);
  EXPECT_EQ(trace->requests.size(), 1U);
  EXPECT_FALSE(ParseRequestTrace(R"({"cut": 1})").ok());
}

TEST(RequestTrace, SurvivesDeepNesting) {
  EXPECT_FALSE(ParseRequestTrace(std::string(200'000, '[')).ok());
}

TEST(RequestTrace, OfNothingIsEmpty) {
  const auto trace = ParseRequestTrace("");
  ASSERT_TRUE(trace.ok());
  EXPECT_TRUE(trace->requests.empty());
}

}  // namespace
}  // namespace spindle::kv::sim
