// Completions over real sockets, against a scripted generation.
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/http/response.h"
#include "unit/server/http_test_server.h"

namespace spindle::server {
namespace {

using Json = nlohmann::json;

// The data lines of a stream.
std::vector<std::string> Events(const std::string& body) {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) {
      events.push_back("unfinished: " + body.substr(at));
      break;
    }
    events.push_back(body.substr(at, end - at));
    at = end + 2;
  }
  return events;
}

Json Data(const std::string& event) {
  return Json::parse(event.substr(std::string("data: ").size()));
}

std::string Chat(const std::string& body, const std::string& headers = {}) {
  return Request("POST", "/v1/chat/completions", body, headers);
}

TEST(GenerationHttp, WholeChatResponse) {
  TestServer server;
  const RawResponse response =
      server.Ask(Chat(R"({"auto":"Hi \"you\"\n"})", "X-Request-Id: my-id\r\n"));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("x-request-id"), "my-id");
  EXPECT_EQ(response.Header("server"), "spindle/0.1.0");
  EXPECT_EQ(response.Header("content-type"), "application/json");
  const Json json = Json::parse(response.body);
  EXPECT_EQ(json["id"], "chatcmpl-my-id");
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "smol");
  EXPECT_EQ(json["system_fingerprint"], "fp_0123456789ab");
  EXPECT_EQ(json["service_tier"], "default");
  EXPECT_GT(json["created"], 0);
  ASSERT_EQ(json["choices"].size(), 1U);
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["message"],
            Json::parse(R"({"role":"assistant","content":"Hi \"you\"\n","refusal":null})"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_EQ(json["usage"]["prompt_tokens"], 7);
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
  EXPECT_EQ(json["usage"]["total_tokens"], 11);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST(GenerationHttp, WholeCompletionResponse) {
  TestServer server;
  const RawResponse response = server.Ask(Request("POST", "/completions", R"({"auto":"abc"})"));
  const Json json = Json::parse(response.body);
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["id"].get<std::string>().substr(0, 5), "cmpl-");
  EXPECT_EQ(json["choices"][0]["text"], "abc");
}

TEST(GenerationHttp, StreamHasRoleTextFinishUsageAndDone) {
  TestServer server;
  const RawResponse response =
      server.Ask(Chat(R"({"auto":"Hi","stream":true,"include_usage":true})"));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(response.Header("cache-control"), "no-cache");
  EXPECT_EQ(response.Header("x-accel-buffering"), "no");
  EXPECT_TRUE(response.complete);
  const std::vector<std::string> events = Events(response.body);
  ASSERT_EQ(events.size(), 5U) << response.body;
  EXPECT_EQ(Data(events[0])["choices"][0]["delta"],
            Json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_TRUE(Data(events[0]).contains("usage"));
  EXPECT_TRUE(Data(events[0])["usage"].is_null());
  EXPECT_EQ(Data(events[1])["choices"][0]["delta"], Json::parse(R"({"content":"Hi"})"));
  EXPECT_TRUE(Data(events[1])["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(Data(events[2])["choices"][0]["delta"], Json::object());
  EXPECT_EQ(Data(events[2])["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(Data(events[3])["choices"], Json::array());
  EXPECT_EQ(Data(events[3])["usage"]["total_tokens"], 11);
  EXPECT_EQ(events[4], "data: [DONE]");
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(Data(events[i])["id"], Data(events[0])["id"]);
    EXPECT_EQ(Data(events[i])["object"], "chat.completion.chunk");
  }
}

TEST(GenerationHttp, StreamWithoutUsageHasNoUsageKey) {
  TestServer server;
  const RawResponse response = server.Ask(Chat(R"({"auto":"Hi","stream":true})"));
  EXPECT_EQ(response.body.find("usage"), std::string::npos);
}

TEST(GenerationHttp, TextCompletionStreamHasNoRoleChunk) {
  TestServer server;
  const RawResponse response =
      server.Ask(Request("POST", "/v1/completions", R"({"auto":"Hi","stream":true})"));
  const std::vector<std::string> events = Events(response.body);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(Data(events[0])["choices"][0]["text"], "Hi");
  EXPECT_EQ(Data(events[0])["object"], "text_completion");
  EXPECT_EQ(Data(events[1])["choices"][0]["finish_reason"], "stop");
}

TEST(GenerationHttp, HeadersWaitForTheFirstChunkAndEventsComeAtOnce) {
  TestServer server;
  RawClient client(server.port());
  client.Send(Chat(R"({"stream":true})"));
  const auto script = server.backend().NextScript();
  script->Push(serving::StartedEvent{});
  script->Text("one");
  EXPECT_NE(client.ReadUntil("\r\n\r\n").find("200 OK"), std::string::npos);
  EXPECT_NE(client.ReadUntil("\"one\"").find("assistant"), std::string::npos);
  script->Text("two");
  EXPECT_NE(client.ReadUntil("\"two\"").find("content"), std::string::npos);
  script->Finish();
  script->End();
  EXPECT_NE(client.ReadUntil("0\r\n\r\n").find("[DONE]"), std::string::npos);
}

TEST(GenerationHttp, FailureBeforeTheHeadersIsAnOrdinaryError) {
  TestServer server;
  RawClient client(server.port());
  client.Send(Chat(R"({"stream":true})"));
  const auto script = server.backend().NextScript();
  script->Push(serving::StartedEvent{});
  script->Fail(serving::MakeError(503, "queue_timeout", "Waited too long."));
  const RawResponse response = client.Read();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(ErrorCode(response), "queue_timeout");
}

TEST(GenerationHttp, FailureAfterTheHeadersIsAnEventWithoutDone) {
  TestServer server;
  RawClient client(server.port());
  client.Send(Chat(R"({"stream":true})"));
  const auto script = server.backend().NextScript();
  script->Text("partial");
  script->Fail(serving::MakeError(504, "generation_timeout", "Ran too long."));
  const RawResponse response = client.Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(response.complete);
  const std::vector<std::string> events = Events(response.body);
  const Json error = Data(events.back())["error"];
  EXPECT_EQ(error["code"], "generation_timeout");
  EXPECT_EQ(error["status"], 504);
  EXPECT_EQ(response.body.find("[DONE]"), std::string::npos);
}

TEST(GenerationHttp, RefusalsOfTheServiceKeepTheirStatusAndRetryHeaders) {
  TestServer server;
  EXPECT_EQ(server.Ask(Chat(R"({"error":404})")).status, 404);
  serving::ApiError full = serving::MakeError(429, "queue_full", "The queue is full.");
  full.retry_after = std::chrono::milliseconds(1500);
  full.should_retry = true;
  server.backend().SetStartError(full);
  const RawResponse response = server.Ask(Chat("{}"));
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(ErrorCode(response), "queue_full");
  EXPECT_EQ(response.Header("retry-after"), "2");
  EXPECT_EQ(response.Header("retry-after-ms"), "2000");
  EXPECT_EQ(response.Header("x-should-retry"), "true");
}

TEST(GenerationHttp, IgnoredFieldsAreNamedOnTheResponse) {
  TestServer server;
  const RawResponse response = server.Ask(Chat(R"({"auto":"x","ignored":["foo","b a\r\nd"]})"));
  EXPECT_EQ(response.Header("x-spindle-ignored"), "foo,b_a__d");
}

TEST(GenerationHttp, ClientThatGoesAwayCancelsQueuedAndStreamingRequests) {
  TestServer server;
  for (const char* body : {R"({"stream":true})", "{}"}) {
    RawClient client(server.port());
    client.Send(Chat(body));
    const auto script = server.backend().NextScript();  // nothing was sent yet: queued
    client.Reset();
    EXPECT_EQ(script->WaitForCancel(), engine::CancelCause::kClientGone);
    script->WaitForRelease();
  }
  RawClient client(server.port());
  client.Send(Chat(R"({"stream":true})"));
  const auto script = server.backend().NextScript();
  script->Text("one");
  EXPECT_FALSE(client.ReadUntil("\"one\"").empty());
  client.ShutdownWrite();  // only the write side: counts as closed
  EXPECT_EQ(script->WaitForCancel(), engine::CancelCause::kClientGone);
  script->WaitForRelease();
}

TEST(GenerationHttp, GoneClientsAreCountedAs499) {
  TestServer server;
  {
    RawClient client(server.port());
    client.Send(Chat("{}"));
    const auto script = server.backend().NextScript();
    client.Reset();
    EXPECT_EQ(script->WaitForCancel(), engine::CancelCause::kClientGone);
  }
  const std::string line =
      R"(spindle_requests_total{model_name="smol",code="499",endpoint="/v1/chat/completions"} 1)";
  const std::string metrics = server.Ask(Request("GET", "/metrics")).body;
  EXPECT_NE(metrics.find(line), std::string::npos) << metrics;
}

TEST(GenerationHttp, BytesOfAPipelinedRequestAreNotAClose) {
  TestServer server;
  RawClient client(server.port());
  client.Send(Chat(R"({"stream":true})"));
  const auto script = server.backend().NextScript();
  script->Text("one");
  EXPECT_FALSE(client.ReadUntil("\"one\"").empty());
  client.Send(Request("GET", "/version"));
  script->Text("two");
  EXPECT_FALSE(client.ReadUntil("\"two\"").empty());
  script->Finish();
  script->End();
  EXPECT_NE(client.ReadUntil("0\r\n\r\n").find("[DONE]"), std::string::npos);
  const RawResponse second = client.Read();
  EXPECT_EQ(second.status, 200);
  EXPECT_EQ(Json::parse(second.body)["version"], "0.1.0");
}

TEST(GenerationHttp, KeepAliveCommentsFlowWhileNothingElseDoes) {
  TestServerConfig config;
  config.options.sse_keepalive = std::chrono::milliseconds(5);
  TestServer server(config);
  RawClient client(server.port());
  client.Send(Chat(R"({"stream":true})"));
  const auto script = server.backend().NextScript();
  EXPECT_NE(client.ReadUntil("\r\n\r\n").find("200 OK"), std::string::npos);
  EXPECT_FALSE(client.ReadUntil(": keep-alive\n\n").empty());
  EXPECT_FALSE(client.ReadUntil(": keep-alive\n\n").empty());
  script->Fail(serving::MakeError(500, "internal_error", "x"));
  EXPECT_NE(client.ReadUntil("0\r\n\r\n").find("internal_error"), std::string::npos);
}

TEST(GenerationHttp, SlowReaderPausesTheStreamAndIsCut) {
  TestServerConfig config;
  config.options.stream_buffer_bytes = 4096;
  config.options.stream_stall_timeout = std::chrono::milliseconds(100);
  TestServer server(config);
  RawClient client(server.port(), /*receive_buffer_bytes=*/4096);
  client.Send(Chat(R"({"stream":true})"));
  const auto script = server.backend().NextScript();
  constexpr size_t kEvents = 2000;
  for (size_t i = 0; i < kEvents; ++i) {
    script->Text(std::string(1024, 'x'));
  }
  EXPECT_EQ(script->WaitForCancel(), engine::CancelCause::kSlowReader);
  script->WaitForRelease();
}

TEST(GenerationHttp, ReaderThatComesBackGetsEverything) {
  TestServerConfig config;
  config.options.stream_buffer_bytes = 4096;
  TestServer server(config);
  RawClient client(server.port(), /*receive_buffer_bytes=*/4096);
  client.Send(Chat(R"({"stream":true})"));
  const auto script = server.backend().NextScript();
  constexpr size_t kEvents = 1000;
  for (size_t i = 0; i < kEvents; ++i) {
    script->Text(std::string(1000, 'x'));
  }
  script->Finish();
  script->End();
  const RawResponse response = client.Read();
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(Events(response.body).size(), kEvents + 3);
}

// Blocks until the answers that are held take at least, or at most, so much.
void WaitForAnswerMemory(TestServer& server, uint64_t least, uint64_t most) {
  const ByteQuota& memory = server.backend().AnswerMemory();
  while (memory.used_bytes() < least || memory.used_bytes() > most) {
    std::this_thread::yield();
  }
}

TEST(AnswerMemory, WholeAnswersShareIt) {
  TestServerConfig config;
  config.answer_memory_bytes = 200'000;
  TestServer server(config);
  RawClient first(server.port());
  first.Send(Chat("{}"));
  const auto long_one = server.backend().NextScript();
  long_one->Text(std::string(100'000, 'x'));
  WaitForAnswerMemory(server, 100'000, 200'000);

  RawClient second(server.port());
  second.Send(Chat("{}"));
  const auto other = server.backend().NextScript();
  other->Text(std::string(110'000, 'y'));
  const RawResponse refused = second.Read();
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(ErrorCode(refused), "memory_full");
  EXPECT_EQ(refused.Header("retry-after"), "1");
  const Json error = Json::parse(refused.body)["error"];
  EXPECT_GE(error["needed_bytes"], 110'000);
  EXPECT_EQ(error["capacity_bytes"], 200'000);
  other->WaitForRelease();

  EXPECT_EQ(server.Ask(Chat(R"({"auto":"short"})")).status, 200) << "short answers need none of it";
  long_one->Finish();
  long_one->End();
  const RawResponse whole = first.Read();
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(Json::parse(whole.body)["choices"][0]["message"]["content"], std::string(100'000, 'x'));
  WaitForAnswerMemory(server, 0, 0);
}

TEST(AnswerMemory, WhatCannotEverFitIsTheRequestsFault) {
  TestServerConfig config;
  config.answer_memory_bytes = 50'000;
  TestServer server(config);
  RawClient client(server.port());
  client.Send(Chat(R"({"logprobs":20})"));
  const auto script = server.backend().NextScript();
  for (int i = 0; i < 200; ++i) {
    serving::DeltaEvent delta;
    delta.text = "word";
    delta.logprobs.emplace_back().bytes = "word";
    delta.logprobs.front().top.resize(20);
    script->Push(std::move(delta));
  }
  const RawResponse refused = client.Read();
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(ErrorCode(refused), "answer_too_large");
  EXPECT_NE(refused.body.find("50000 bytes"), std::string::npos) << refused.body;
  script->WaitForRelease();
  WaitForAnswerMemory(server, 0, 0);
}

TEST(AnswerMemory, AnAnswerHoldsItUntilItsReaderHasIt) {
  TestServerConfig config;
  config.answer_memory_bytes = 10'000'000;
  TestServer server(config);
  RawClient slow(server.port(), /*receive_buffer_bytes=*/4096);
  slow.Send(Chat("{}"));
  const auto script = server.backend().NextScript();
  constexpr size_t kBytes = 6'000'000;  // more than the sockets take
  script->Text(std::string(kBytes, 'x'));
  script->Finish();
  script->End();
  script->WaitForRelease();
  WaitForAnswerMemory(server, kBytes, 10'000'000);
  EXPECT_EQ(Json::parse(slow.Read().body)["choices"][0]["message"]["content"].get<std::string>(),
            std::string(kBytes, 'x'));
  WaitForAnswerMemory(server, 0, 0);
}

TEST(AnswerMemory, OtherLongAnswersTakeItToo) {
  TestServerConfig config;
  config.answer_memory_bytes = 50'000;
  TestServer server(config);
  const std::string body(60'000, 'x');  // comes back in the answer
  const RawResponse refused = server.Ask(Request("POST", "/v1/tokenize", body));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(ErrorCode(refused), "answer_too_large");
  EXPECT_EQ(server.Ask(Request("POST", "/v1/tokenize", body.substr(0, 30'000))).status, 200);
  WaitForAnswerMemory(server, 0, 0);
}

TEST(AnswerMemory, StreamsPauseEarlierWhenOthersHaveIt) {
  constexpr size_t kEvents = 3000;
  const auto speak = [](Script& script) {
    for (size_t i = 0; i < kEvents; ++i) {
      script.Text(std::string(1000, 'x'));
    }
    script.Finish();
    script.End();
  };
  TestServerConfig config;
  config.options.stream_buffer_bytes = 4'000'000;  // all of it
  config.options.stream_stall_timeout = std::chrono::milliseconds(500);
  config.answer_memory_bytes = 100'000;
  TestServer server(config);
  ByteQuota::Lease others(server.backend().AnswerMemory());
  ASSERT_TRUE(others.Cover(100'000));
  RawClient never(server.port(), /*receive_buffer_bytes=*/4096);
  never.Send(Chat(R"({"stream":true})"));
  const auto unread = server.backend().NextScript();
  speak(*unread);
  unread->WaitForRelease();
  ASSERT_TRUE(unread->num_polled_before_cancel().has_value()) << "it was never paused";
  EXPECT_LT(*unread->num_polled_before_cancel(), kEvents / 2);

  RawClient client(server.port(), /*receive_buffer_bytes=*/4096);
  client.Send(Chat(R"({"stream":true})"));
  speak(*server.backend().NextScript());
  const RawResponse response = client.Read();
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(Events(response.body).size(), kEvents + 3) << "nothing is lost by a pause";
}

TEST(GenerationHttp, ProgressIsSentOnlyWhenAskedFor) {
  TestServer server;
  for (const bool asked : {true, false}) {
    RawClient client(server.port());
    client.Send(Chat(asked ? R"({"stream":true,"progress":true})" : R"({"stream":true})"));
    const auto script = server.backend().NextScript();
    script->Push(serving::ProgressEvent{false, 0, 64, 128, 32});
    script->Push(serving::ProgressEvent{false, 0, 128, 128, 32});  // too soon after the first
    script->Text("x");
    script->Finish();
    script->End();
    const std::vector<std::string> events = Events(client.Read().body);
    ASSERT_EQ(events.size(), asked ? 5U : 4U);
    if (asked) {
      EXPECT_EQ(Data(events[0])["choices"], Json::array());
      EXPECT_EQ(Data(events[0])["spindle"]["progress"],
                Json::parse(R"({"phase":"prefill","queue_position":0,"processed_tokens":64,
                                "total_tokens":128,"cached_tokens":32})"));
    }
  }
}

TEST(GenerationHttp, Http10StreamsUntilTheConnectionEnds) {
  TestServer server;
  RawClient client(server.port());
  const std::string body = R"({"auto":"Hi","stream":true})";
  client.Send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const RawResponse response = client.Read();
  EXPECT_EQ(response.Header("connection"), "close");
  EXPECT_EQ(response.Header("transfer-encoding"), "");
  EXPECT_EQ(Events(response.body).back(), "data: [DONE]");
}

TEST(GenerationHttp, ActiveIdsAreUniqueUntilTheGenerationIsReallyOver) {
  TestServer server;
  RawClient first(server.port());
  first.Send(Chat(R"({"stream":true})", "x-request-id: same\r\n"));
  const auto script = server.backend().NextScript();
  const RawResponse second = server.Ask(Chat(R"({"auto":"x"})", "x-request-id: same\r\n"));
  EXPECT_EQ(second.Header("x-request-id").substr(0, 5), "same-");
  script->Text("x");
  script->Finish();
  script->End();
  EXPECT_EQ(first.Read().Header("x-request-id"), "same");
  EXPECT_EQ(server.Ask(Chat(R"({"auto":"x"})", "x-request-id: same\r\n")).Header("x-request-id"),
            "same");
}

TEST(GenerationHttp, TheBodyMayNameTheRequest) {
  TestServer server;
  const std::string body = R"({"auto":"x","request_id":"from-body"})";
  RawResponse response = server.Ask(Chat(body));
  EXPECT_EQ(response.Header("x-request-id"), "from-body");
  EXPECT_EQ(Json::parse(response.body)["id"], "chatcmpl-from-body");
  response = server.Ask(Chat(body, "x-request-id: from-header\r\n"));
  EXPECT_EQ(response.Header("x-request-id"), "from-header");
  EXPECT_EQ(Json::parse(response.body)["id"], "chatcmpl-from-header");
  response = server.Ask(Chat(body, "x-request-id: not usable\r\n"));
  EXPECT_EQ(response.Header("x-request-id"), "from-body");

  RawClient first(server.port());
  first.Send(Chat(R"({"stream":true,"request_id":"same"})"));
  const auto script = server.backend().NextScript();
  EXPECT_EQ(script->id(), "same") << "the engine, and so cancelling, knows it by this name";
  response = server.Ask(Chat(R"({"auto":"x","request_id":"same"})"));
  EXPECT_EQ(response.Header("x-request-id").substr(0, 5), "same-");
  script->Text("x");
  script->Finish();
  script->End();
  EXPECT_EQ(first.Read().Header("x-request-id"), "same");
  EXPECT_EQ(server.ids().num_active(), 0U);
}

TEST(GenerationHttp, KeyLimitsAnswer429) {
  TestServerConfig config;
  config.keys.keys = {"k1"};
  TestServer plain(config);
  EXPECT_EQ(plain.Ask(Chat(R"({"auto":"x"})")).status, 401);
  EXPECT_EQ(plain.Ask(Chat(R"({"auto":"x"})", "Authorization: bearer k1\r\n")).status, 200);
  EXPECT_EQ(plain.backend().callers().back().min_priority, 0);
  EXPECT_FALSE(plain.backend().callers().back().tenant.empty());
}

TEST(GenerationHttp, OnlyTrustedKeysSayForWhomTheyAsk) {
  TestServerConfig config;
  config.keys.key_file = testing::TempDir() + "/keys-trusted.txt";
  std::ofstream(config.keys.key_file) << "name=gateway key=g trusted=on\nname=user key=u\n";
  TestServer server(config);
  const auto fairness_id = [&server](const std::string& key) {
    const std::string headers =
        "Authorization: Bearer " + key + "\r\nx-gateway-inference-fairness-id: team\r\n";
    EXPECT_EQ(server.Ask(Chat(R"({"auto":"x"})", headers)).status, 200);
    return server.backend().callers().back().fairness_id;
  };
  EXPECT_EQ(fairness_id("g"), "team");
  EXPECT_EQ(fairness_id("u"), "");
}

}  // namespace
}  // namespace spindle::server
