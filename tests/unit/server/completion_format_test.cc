#include "server/http/completion_format.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/http/json_writer.h"
#include "server/http/logprob_format.h"

namespace spindle::server {
namespace {

using Json = nlohmann::json;

serving::PreparedRequest ChatRequest() {
  serving::PreparedRequest request;
  request.model = "smol";
  request.prompts = {{1, 2, 3}};
  return request;
}

const CompletionIdentity kIdentity{"chatcmpl-x", 1700000000, "fp_0"};

// The JSON of each event.
std::vector<Json> Parse(const std::string& events) {
  std::vector<Json> parsed;
  for (size_t at = 0; at < events.size();) {
    const size_t end = events.find("\n\n", at);
    parsed.push_back(Json::parse(events.substr(at + 6, end - at - 6)));
    at = end + 2;
  }
  return parsed;
}

std::string Joined(TextBlocks text) {
  std::string joined;
  for (const std::string& block : text.Take()) {
    joined += block;
  }
  return joined;
}

TEST(JsonWriter, StringsReadBackEqual) {
  std::string all;
  for (int c = 0; c < 128; ++c) {
    all.push_back(static_cast<char>(c));
  }
  for (const std::string& text : {all, std::string("héllo 世界 🙂 \u2028"), std::string()}) {
    std::string json;
    AppendJsonString(text, &json);
    EXPECT_EQ(Json::parse(json), text);
    EXPECT_EQ(json.find('\n'), std::string::npos);
  }
}

TEST(JsonWriter, BadUtf8NeverLeaves) {
  struct Row {
    std::string bytes;
    std::string text;
  };

  const std::string bad = "\xEF\xBF\xBD";
  const std::vector<Row> rows = {
      {"\x80", bad},
      {"a\xC3", "a" + bad},
      {"\xC3(", bad + "("},
      {"\xC0\x80", bad + bad},            // overlong
      {"\xE0\x80\x80", bad + bad + bad},  // overlong
      {"\xED\xA0\x80", bad + bad + bad},  // surrogate
      {"\xF5\x80\x80\x80", bad + bad + bad + bad},
      {"\xF4\x90\x80\x80", bad + bad + bad + bad},  // above U+10FFFF
      {"\xE4\xB8", bad},
      {"\xF0\x9F\x99\x82", "\xF0\x9F\x99\x82"},
  };
  for (const Row& row : rows) {
    std::string json;
    AppendJsonString(row.bytes, &json);
    EXPECT_EQ(Json::parse(json), row.text);
  }
}

TEST(JsonWriter, NumbersReadBackEqual) {
  for (const float value : {0.0F, -0.5F, -1.0F, 1e-20F, -9998.75F, 0.1F}) {
    std::string json;
    AppendJsonNumber(value, &json);
    EXPECT_EQ(Json::parse(json).get<float>(), value) << json;
  }
}

serving::TokenLogprob Token(std::string bytes, float logprob) {
  serving::TokenLogprob token;
  token.token = 1;
  token.bytes = std::move(bytes);
  token.logprob = logprob;
  return token;
}

TEST(LogprobFormat, ChatEntries) {
  serving::TokenLogprob token = Token("\xC3", -0.25F);
  token.top = {{5, "a", -0.25F}, {6, "\xC3", -std::numeric_limits<float>::infinity()}};
  std::string json;
  AppendLogprobs(
      /*is_chat=*/true, std::vector<serving::TokenLogprob>{token, Token("b", -20000.0F)}, &json);
  EXPECT_EQ(Json::parse(json), Json::parse(R"({"content":[
      {"token":"\uFFFD","logprob":-0.25,"bytes":[195],"top_logprobs":[
          {"token":"a","logprob":-0.25,"bytes":[97]},
          {"token":"\uFFFD","logprob":-9999.0,"bytes":[195]}]},
      {"token":"b","logprob":-9999.0,"bytes":[98],"top_logprobs":[]}],"refusal":null})"));
}

TEST(LogprobFormat, CompletionArrays) {
  serving::TokenLogprob first;
  first.bytes = "Hi";
  serving::TokenLogprob second = Token("\xC3", -3.0F);
  second.top = {{5, " a", -0.5F}, {6, "b", -1.0F}};
  second.text_offset = 2;
  serving::TokenLogprob third = Token("c", -2.0F);
  third.top = {{7, "c", -2.0F}, {8, "c", -1.5F}};  // two ids with one text: the larger stays
  third.text_offset = 3;
  std::string json;
  AppendLogprobs(
      /*is_chat=*/false, std::vector<serving::TokenLogprob>{first, second, third}, &json);
  EXPECT_EQ(Json::parse(json), Json::parse(R"({"tokens":["Hi","bytes:\\xc3","c"],
      "token_logprobs":[null,-3.0,-2.0],
      "top_logprobs":[null,{" a":-0.5,"b":-1.0,"bytes:\\xc3":-3.0},{"c":-1.5}],
      "text_offset":[0,2,3]})"));
}

TEST(ChunkWriter, ChoicesInterleaveWithOneRoleChunkEach) {
  serving::PreparedRequest request = ChatRequest();
  request.sampling.num_choices = 2;
  ChunkWriter writer(request, kIdentity);
  std::string out;
  serving::DeltaEvent delta;
  delta.choice = 1;
  delta.text = "b";
  writer.Delta(delta, {}, &out);
  delta.choice = 0;
  delta.text = "a";
  writer.Delta(delta, {}, &out);
  delta.text = "";  // nothing to show
  writer.Delta(delta, {}, &out);
  serving::FinishedEvent finish;
  finish.choice = 1;
  finish.reason = engine::FinishReason::kLength;
  writer.Finished(finish, {}, &out);
  const std::vector<Json> events = Parse(out);
  ASSERT_EQ(events.size(), 5U);
  const std::vector<int> choices = {1, 1, 0, 0, 1};
  for (size_t i = 0; i < events.size(); ++i) {
    ASSERT_EQ(events[i]["choices"].size(), 1U);
    EXPECT_EQ(events[i]["choices"][0]["index"], choices[i]);
    EXPECT_EQ(events[i]["choices"][0]["delta"].contains("role"), i == 0 || i == 2);
    EXPECT_FALSE(events[i].contains("usage"));
  }
  EXPECT_EQ(events[4]["choices"][0]["finish_reason"], "length");
}

TEST(ChunkWriter, LogprobsTravelWithTheirText) {
  serving::PreparedRequest request = ChatRequest();
  request.sampling.logprobs = 0;
  ChunkWriter writer(request, kIdentity);
  std::string out;
  serving::DeltaEvent delta;
  delta.logprobs = {Token("\xC3", -1.0F)};  // half a character: no text yet
  writer.Delta(delta, {}, &out);
  const std::vector<Json> events = Parse(out);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_TRUE(events[0]["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(events[1]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["content"].size(), 1U);
}

TEST(ChunkWriter, ContinuousUsageIsInEveryChunk) {
  serving::PreparedRequest request = ChatRequest();
  request.include_usage = true;
  request.continuous_usage = true;
  ChunkWriter writer(request, kIdentity);
  std::string out;
  serving::DeltaEvent delta;
  delta.text = "x";
  writer.Delta(delta, {5, 1, 0}, &out);
  for (const Json& event : Parse(out)) {
    EXPECT_EQ(event["usage"]["total_tokens"], 6);
  }
}

TEST(ChunkWriter, TokenIdsWhenAskedFor) {
  serving::PreparedRequest request = ChatRequest();
  request.return_token_ids = true;
  ChunkWriter chat(request, kIdentity);
  std::string out;
  serving::DeltaEvent delta;
  delta.text = "x";
  delta.token_ids = {7, 8};
  chat.Delta(delta, {}, &out);
  std::vector<Json> events = Parse(out);
  EXPECT_EQ(events[0]["prompt_token_ids"], Json::parse("[1,2,3]"));
  EXPECT_EQ(events[1]["choices"][0]["token_ids"], Json::parse("[7,8]"));

  request.endpoint = serving::Endpoint::kCompletions;
  request.prompts = {{1}, {2}};
  ChunkWriter text(request, kIdentity);
  out.clear();
  delta.choice = 1;
  text.Delta(delta, {}, &out);
  events = Parse(out);
  EXPECT_EQ(events[0]["choices"][0]["prompt_token_ids"], Json::parse("[2]"));
}

TEST(ResultBuilder, ChoicesAreOrderedAndStopReasonsShown) {
  serving::PreparedRequest request = ChatRequest();
  request.endpoint = serving::Endpoint::kCompletions;
  request.sampling.logprobs = 0;
  request.return_token_ids = true;
  ResultBuilder builder(request, kIdentity);
  serving::DeltaEvent delta;
  delta.choice = 1;
  delta.text = "b";
  delta.token_ids = {9};
  delta.logprobs = {Token("b", -1.0F)};
  builder.Delta(delta);
  serving::FinishedEvent finish;
  finish.choice = 1;
  finish.stop_string = "END";
  builder.Finished(finish);
  finish = {};
  finish.stop_token = 2;
  builder.Finished(finish);
  const Json json = Json::parse(Joined(builder.Build({3, 2, 1}, {})));
  ASSERT_EQ(json["choices"].size(), 2U);
  EXPECT_EQ(json["choices"][0]["index"], 0);
  EXPECT_EQ(json["choices"][0]["text"], "");
  EXPECT_EQ(json["choices"][0]["stop_reason"], 2);
  EXPECT_EQ(json["choices"][1]["stop_reason"], "END");
  EXPECT_EQ(json["choices"][1]["token_ids"], Json::parse("[9]"));
  EXPECT_EQ(json["choices"][1]["logprobs"]["tokens"], Json::parse(R"(["b"])"));
  EXPECT_FALSE(json.contains("service_tier"));
}

// The same logprobs token by token and at once, in both forms.
TEST(ResultBuilder, GrowsTokenByToken) {
  for (const bool is_chat : {true, false}) {
    serving::PreparedRequest request = ChatRequest();
    request.endpoint = is_chat ? serving::Endpoint::kChat : serving::Endpoint::kCompletions;
    request.sampling.logprobs = 1;
    request.return_token_ids = true;
    ResultBuilder builder(request, kIdentity);
    std::string text;
    std::vector<TokenId> ids;
    std::vector<serving::TokenLogprob> all;
    constexpr int kTokens = 3000;  // several blocks
    for (int i = 0; i < kTokens; ++i) {
      serving::DeltaEvent delta;
      delta.text = i % 7 == 0 ? "\"\n" : "w\u00e9 ";
      delta.token_ids = {i};
      delta.logprobs = {Token(delta.text, -0.25F * static_cast<float>(i % 9))};
      delta.logprobs.front().top = {{i, delta.text, -0.5F}};
      text += delta.text;
      ids.push_back(i);
      all.push_back(delta.logprobs.front());
      builder.Delta(delta);
    }
    std::string logprobs;
    AppendLogprobs(is_chat, all, &logprobs);
    const Json choice = Json::parse(Joined(builder.Build({}, {})))["choices"][0];
    EXPECT_EQ(is_chat ? choice["message"]["content"] : choice["text"], text);
    EXPECT_EQ(choice["token_ids"], ids);
    EXPECT_EQ(choice["logprobs"], Json::parse(logprobs));
  }
}

TEST(ResultBuilder, CountsWhatItHolds) {
  serving::PreparedRequest request = ChatRequest();
  request.sampling.logprobs = 20;
  ResultBuilder builder(request, kIdentity);
  EXPECT_EQ(builder.held_bytes(), 0U);
  serving::DeltaEvent delta;
  delta.text = std::string(100, 'x');
  delta.logprobs = {Token("x", -1.0F)};
  delta.logprobs.front().top.resize(20);
  uint64_t before = 0;
  for (int i = 0; i < 1000; ++i) {
    delta.choice = static_cast<uint32_t>(i % 4);
    builder.Delta(delta);
    EXPECT_GE(builder.held_bytes(), before);
    before = builder.held_bytes();
  }
  TextBlocks body = builder.Build({}, {});
  EXPECT_EQ(builder.held_bytes(), 0U);
  // Blocks are at most half empty, and of short texts as well.
  EXPECT_GE(before + 4096, body.size_bytes());
  EXPECT_LE(before, 2 * body.size_bytes());
  EXPECT_LE(body.held_bytes(), before + 2 * TextBlocks::kBlockBytes);
  builder.Delta(delta);
  builder.Clear();
  EXPECT_EQ(builder.held_bytes(), 0U);
}

TEST(TextBlocks, HoldsLittleMoreThanItsText) {
  TextBlocks text;
  EXPECT_TRUE(text.empty());
  std::string all;
  for (int i = 0; i < 20000; ++i) {
    const std::string piece = std::to_string(i) + ",";
    text.Append(piece);
    all += piece;
  }
  const std::string large(3 * TextBlocks::kBlockBytes, 'x');
  text.Append(large);
  EXPECT_EQ(text.size_bytes(), all.size() + large.size());
  EXPECT_LE(text.held_bytes(), text.size_bytes() + TextBlocks::kBlockBytes + 4096);
  TextBlocks other;
  other.Append("short");
  text.Append(std::move(other));
  EXPECT_TRUE(other.empty());  // NOLINT(bugprone-use-after-move): that is the contract
  TextBlocks longer;
  longer.Append(large);
  text.Append(std::move(longer));
  text.Append("end");
  EXPECT_EQ(Joined(std::move(text)), all + large + "short" + large + "end");
}

engine::RequestStats SomeStats() {
  engine::RequestStats stats;
  stats.prompt_tokens = 200;
  stats.cached_tokens = 192;
  stats.disk_tokens = 128;
  stats.longest_choice = 11;
  stats.preemptions = 2;
  stats.kv = {.page_tokens = 16, .pages = 120, .bytes = 491520, .disk_bytes = 8192};
  stats.queue_time = std::chrono::milliseconds(30);
  stats.load_time = std::chrono::milliseconds(20);
  stats.prefill_time = std::chrono::milliseconds(5);
  stats.time_to_first_token = std::chrono::milliseconds(35);
  stats.decode_time = std::chrono::milliseconds(50);
  return stats;
}

void ExpectStats(const Json& spindle) {
  EXPECT_EQ(spindle["sparse"]["algorithm"], "dense");
  EXPECT_EQ(spindle["kv"]["page_tokens"], 16);
  EXPECT_EQ(spindle["kv"]["pages_total"], 120);
  EXPECT_EQ(spindle["kv"]["bytes_total"], 491520);
  EXPECT_EQ(spindle["kv"]["fetched_bytes"]["disk"], 8192);
  EXPECT_EQ(spindle["kv"]["fetch_stall_ms"], 20);
  EXPECT_EQ(spindle["timing"]["queue_ms"], 30);
  EXPECT_EQ(spindle["timing"]["load_ms"], 20);
  EXPECT_EQ(spindle["timing"]["prefill_ms"], 5);
  EXPECT_EQ(spindle["timing"]["ttft_ms"], 35);
  EXPECT_EQ(spindle["timing"]["decode_ms"], 50);
  EXPECT_EQ(spindle["timing"]["tpot_ms_mean"], 5);
  EXPECT_EQ(spindle["timing"]["preemptions"], 2);
  EXPECT_EQ(spindle["seed"], 18446744073709551615U);
}

TEST(Statistics, StandBesideTheUsageOfAWholeResponse) {
  serving::PreparedRequest request = ChatRequest();
  request.sampling.seed = UINT64_MAX;
  const auto answer = [&request] {
    ResultBuilder builder(request, kIdentity);
    return Json::parse(Joined(builder.Build({200, 11, 192}, SomeStats())));
  };
  EXPECT_FALSE(answer().contains("spindle"));
  request.stats = true;
  const Json json = answer();
  ExpectStats(json["spindle"]);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["spindle_cached"],
            Json::parse(R"({"host":64,"disk":128})"));
}

TEST(Statistics, ComeInTheLastChunkOfAStream) {
  serving::PreparedRequest request = ChatRequest();
  request.stream = true;
  request.sampling.seed = UINT64_MAX;
  request.stats = true;
  for (const bool include_usage : {false, true}) {
    request.include_usage = include_usage;
    std::string out;
    ChunkWriter(request, kIdentity).Done({200, 11, 192}, SomeStats(), &out);
    const std::string end = "data: [DONE]\n\n";
    ASSERT_EQ(out.substr(out.size() - end.size()), end);
    const std::vector<Json> events = Parse(out.substr(0, out.size() - end.size()));
    ASSERT_EQ(events.size(), 1U);
    EXPECT_TRUE(events[0]["choices"].empty());
    ExpectStats(events[0]["spindle"]);
    EXPECT_EQ(events[0].contains("usage"), include_usage);
  }
}

TEST(Statistics, OfLayersComeWhereTheyWereAskedFor) {
  serving::PreparedRequest request = ChatRequest();
  request.stats = true;
  engine::RequestStats stats = SomeStats();
  stats.layers.resize(2);
  stats.layers[1].AddRow(0.25, 0.5);
  stats.layers[1].AddRow(0.5, 0.75);
  stats.layers[1].page_hits = 3;
  stats.layers[1].page_misses = 1;
  const auto answer = [&] {
    ResultBuilder builder(request, kIdentity);
    return Json::parse(Joined(builder.Build({200, 11, 192}, stats)))["spindle"];
  };
  EXPECT_FALSE(answer().contains("per_layer"));
  request.layer_stats = true;
  EXPECT_EQ(answer()["per_layer"], Json::parse(R"([
      {"layer":0,"attended_fraction_mean":1,"hit_rate":1,"est_mass_mean":null},
      {"layer":1,"attended_fraction_mean":0.375,"hit_rate":0.75,"est_mass_mean":0.625}])"));
}

}  // namespace
}  // namespace spindle::server
