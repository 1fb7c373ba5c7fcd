// Framing, keep-alive, pipelining and the order of checks over real sockets.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/http/response.h"
#include "unit/server/http_test_server.h"

namespace spindle::server {
namespace {

TEST(Connection, AnswersPipelinedRequestsInOrder) {
  TestServer server;
  RawClient client(server.port());
  std::string bytes;
  bytes += Request("POST", "/v1/chat/completions", R"({"auto":"first"})");
  bytes += Request("GET", "/version");
  bytes += Request("POST", "/v1/completions", R"({"auto":"third","stream":true})");
  bytes += Request("GET", "/nothing");
  bytes += Request("GET", "/health");
  client.Send(bytes);
  EXPECT_NE(client.Read().body.find("first"), std::string::npos);
  EXPECT_NE(client.Read().body.find("version"), std::string::npos);
  EXPECT_NE(client.Read().body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(client.Read().status, 404);
  EXPECT_EQ(client.Read().body, R"({"status":"ok"})");
}

TEST(Connection, ManyPipelinedRequestsWithoutReadingAreBounded) {
  TestServerConfig config;
  config.options.stream_buffer_bytes = 4096;
  TestServer server(config);
  RawClient client(server.port());
  constexpr int kRequests = 500;
  std::string bytes;
  for (int i = 0; i < kRequests; ++i) {
    bytes += Request("GET", "/version");
  }
  client.Send(bytes);
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_EQ(client.Read().status, 200) << i;
  }
}

TEST(Connection, EveryCuttingOfARequestGivesTheSameAnswer) {
  TestServer server;
  const std::string chunked =
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"
      "X-Request-Id: cut\r\n\r\n4;ext=1\r\n{\"au\r\nd\r\nto\":\"answer\"}\r\n0\r\nTrailer: "
      "x\r\n\r\n";
  const std::string next = Request("GET", "/version");
  const std::string all = chunked + next;
  for (size_t cut = 1; cut < all.size(); cut += 3) {
    RawClient client(server.port());
    client.Send(std::string_view(all).substr(0, cut));
    client.Send(std::string_view(all).substr(cut));
    const RawResponse first = client.Read();
    ASSERT_EQ(first.status, 200) << cut << first.body;
    EXPECT_EQ(first.Header("x-request-id"), "cut");
    EXPECT_NE(first.body.find("answer"), std::string::npos);
    EXPECT_EQ(client.Read().status, 200) << cut;
  }
  EXPECT_EQ(server.backend().last_body(), R"({"auto":"answer"})");
}

TEST(Connection, OneByteAtATime) {
  TestServer server;
  RawClient client(server.port());
  for (const char c : Request("POST", "/tokenize", R"({"a":1})")) {
    client.Send(std::string_view(&c, 1));
  }
  EXPECT_EQ(client.Read().body, R"({"tool":0,"body":"{\"a\":1}"})");
}

TEST(Connection, KeepsAliveOrClosesAsAsked) {
  TestServer server;
  RawClient keep(server.port());
  keep.Send(Request("GET", "/version"));
  EXPECT_EQ(keep.Read().Header("connection"), "");
  keep.Send(Request("GET", "/version", {}, "Connection: Close\r\n"));
  EXPECT_EQ(keep.Read().Header("connection"), "close");
  EXPECT_EQ(keep.ReadAll(), "");

  RawClient old(server.port());
  old.Send("GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(old.Read().Header("connection"), "keep-alive");
  old.Send("GET /version HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read().Header("connection"), "close");
  EXPECT_EQ(old.ReadAll(), "");
}

TEST(Connection, HeadSendsTheHeadersOfGetAndNoBody) {
  TestServer server;
  RawClient client(server.port());
  client.Send(Request("HEAD", "/version") + Request("GET", "/version"));
  const RawResponse head = client.Read(true);
  const RawResponse get = client.Read();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.Header("content-length"), get.Header("content-length"));
  EXPECT_EQ(std::to_string(get.body.size()), get.Header("content-length"));
}

TEST(Connection, ExpectContinueComesAfterTheChecks) {
  TestServer server;
  RawClient client(server.port());
  const std::string head =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 12\r\n"
      "Expect: 100-continue\r\n";
  client.Send(head + "\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(R"({"auto":"x"})");
  EXPECT_EQ(client.Read().status, 200);

  RawClient refused(server.port());
  refused.Send(head + "Content-Type: text/plain\r\n\r\n");
  const RawResponse response = refused.Read();
  EXPECT_EQ(response.status, 415);
  EXPECT_EQ(response.Header("connection"), "close");
}

TEST(Connection, RefusedBodiesAreSkippedAndTheConnectionLivesOn) {
  TestServer server;
  RawClient client(server.port());
  client.Send(Request("POST", "/nothing", std::string(100000, 'x')) + Request("GET", "/version"));
  EXPECT_EQ(client.Read().status, 404);
  EXPECT_EQ(client.Read().status, 200);
}

TEST(Connection, TooLargeBodiesAreRefusedWithoutReadingThem) {
  TestServerConfig config;
  config.options.max_body_bytes = 2048;
  TestServer server(config);
  RawClient declared(server.port());
  declared.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 2049\r\n\r\n");
  RawResponse response = declared.Read();
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(ErrorCode(response), "request_too_large");
  EXPECT_EQ(response.Header("connection"), "close");

  RawClient chunked(server.port());
  chunked.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "400\r\n" +
      std::string(1024, 'x') + "\r\n401\r\n");
  response = chunked.Read();
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(response.Header("connection"), "close");

  RawClient exact(server.port());
  exact.Send(Request("POST", "/tokenize", std::string(2048, 'x')));
  EXPECT_EQ(exact.Read().status, 200);
}

TEST(Connection, OrderOfChecks) {
  TestServerConfig config;
  config.keys.keys = {"k1"};
  config.options.max_body_bytes = 1024;
  TestServer server(config);
  server.backend().SetUnavailable(serving::MakeError(503, "model_loading", "Loading."));
  const std::string key = "Authorization: Bearer k1\r\n";
  const std::string big = "Content-Length: 99999\r\nContent-Type: text/plain\r\n";
  const auto raw = [](std::string_view method, std::string_view path, const std::string& headers) {
    return std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: t\r\n" + headers +
           "\r\n";
  };

  struct Row {
    std::string request;
    int status;
  };

  const std::vector<Row> rows = {
      // Each request also breaks all later rules.
      {raw("GET", "/v1/nothing", big + "Bad Header: x\r\n"), 400},
      {raw("GET", "/v1/nothing", big), 401},
      {raw("GET", "/v1/nothing", key + big), 404},
      {raw("GET", "/v1/chat/completions", key + big), 405},
      {raw("POST", "/v1/chat/completions", key + big), 413},
      {raw("POST", "/v1/chat/completions", key + "Content-Type: text/plain\r\n"), 415},
      {raw("POST", "/v1/chat/completions", key), 503},
      {raw("POST", "/tokenize", key), 200},  // not an inference endpoint
  };
  for (const Row& row : rows) {
    EXPECT_EQ(server.Ask(row.request).status, row.status) << row.request;
  }
  server.backend().SetUnavailable(std::nullopt);
  EXPECT_EQ(server.Ask(raw("POST", "/v1/chat/completions", key)).status, 400);
  EXPECT_EQ(server.backend().num_rejections(), 1U);
}

TEST(Connection, MediaTypes) {
  TestServer server;

  struct Row {
    const char* headers;
    int status;
  };

  const std::vector<Row> rows = {
      {"", 200},
      {"Content-Type: application/json\r\n", 200},
      {"Content-Type: APPLICATION/JSON; charset=UTF-8\r\n", 200},
      {"Content-Type: application/json; charset=\"utf-8\"\r\n", 200},
      {"Content-Type: application/vnd.api+json\r\n", 200},
      {"Content-Type: application/json; charset=latin1\r\n", 415},
      {"Content-Type: application/+json\r\n", 415},
      {"Content-Type: application/jsonp\r\n", 415},
      {"Content-Type: text/plain\r\n", 415},
      {"Content-Type: \r\n", 415},
      {"Content-Encoding: identity\r\n", 200},
      {"Content-Encoding: gzip\r\n", 415},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(server.Ask(Request("POST", "/tokenize", "{}", row.headers)).status, row.status)
        << row.headers;
  }
}

TEST(Connection, ServesUnixSocketsAndTreatsThemAsLocal) {
  const std::string path = ::testing::TempDir() + "/spindle-http-test.sock";
  {
    TestServerConfig config;
    config.options.uds = path;
    TestServer server(config);
    EXPECT_EQ(server.server().address(), "unix:" + path);
    RawClient client(path);
    client.Send(Request("GET", "/admin/requests"));
    EXPECT_EQ(client.Read().status, 200);
  }
  // The socket file is gone, so the next server can bind.
  TestServerConfig config;
  config.options.uds = path;
  TestServer again(config);
}

TEST(Connection, BusyPortsAndBadOptionsAreNamed) {
  TestServer server;
  metrics::Registry registry({});
  RequestIds ids;
  auto keys = ApiKeys::Create({}, SteadyClock());
  ASSERT_TRUE(keys.ok());
  const auto create = [&](const HttpOptions& options) {
    return HttpServer::CreateWithBackend(
        options,
        std::make_unique<ScriptedBackend>(),
        {.keys = **keys, .ids = ids, .registry = registry, .clock = SteadyClock()},
        {});
  };
  HttpOptions options;
  options.port = server.port();
  auto busy = create(options);
  ASSERT_TRUE(busy.ok());
  EXPECT_EQ((*busy)->Listen().code(), absl::StatusCode::kUnavailable);
  options.num_threads = 0;
  EXPECT_NE(create(options).status().message().find("http_threads"), std::string::npos);
  options.num_threads = 1;
  options.root_path = "x/";
  EXPECT_NE(create(options).status().message().find("--root-path"), std::string::npos);
}

}  // namespace
}  // namespace spindle::server
