// Timeouts, drain and stop. The limits are small, and tests wait for what must happen, never for
// time to pass.
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/http/response.h"
#include "unit/server/http_test_server.h"

namespace spindle::server {
namespace {

constexpr auto kShort = std::chrono::milliseconds(30);

TEST(ConnectionLimits, SlowHeadersAnswer408AndClose) {
  TestServerConfig config;
  config.options.header_timeout = kShort;
  TestServer server(config);
  RawClient client(server.port());
  client.Send("GET /version HTTP/1.1\r\nHo");
  const RawResponse response = client.Read();
  EXPECT_EQ(response.status, 408);
  EXPECT_EQ(ErrorCode(response), "request_timeout");
  const auto error = nlohmann::json::parse(response.body)["error"];
  EXPECT_GE(error["total_ms"], 30);
  EXPECT_LT(error["total_ms"], 60000);
  EXPECT_EQ(error["message"],
            "The request did not arrive in time: its head took longer than 30 ms.");
  EXPECT_EQ(response.Header("connection"), "close");
  EXPECT_EQ(client.ReadAll(), "");
}

TEST(ConnectionLimits, ConnectionsThatSayNothingAreClosedSilently) {
  TestServerConfig config;
  config.options.header_timeout = kShort;
  config.options.keep_alive_timeout = kShort;
  TestServer server(config);
  RawClient silent(server.port());
  EXPECT_EQ(silent.ReadAll(), "");
  RawClient idle(server.port());
  idle.Send(Request("GET", "/version"));
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_EQ(idle.ReadAll(), "");
}

TEST(ConnectionLimits, StalledBodiesAnswer408AndClose) {
  TestServerConfig config;
  config.options.body_timeout = kShort;
  TestServer server(config);
  RawClient client(server.port());
  client.Send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{");
  const RawResponse response = client.Read();
  EXPECT_EQ(response.status, 408);
  EXPECT_EQ(client.ReadAll(), "");
}

TEST(ConnectionLimits, DrippedBodiesAreCutToo) {
  TestServerConfig config;
  config.options.body_timeout = std::chrono::milliseconds(100);
  TestServer server(config);
  RawClient client(server.port());
  client.Send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n");
  // A byte now and then does not keep it alive: only the server's end stops this loop.
  size_t sent = 0;
  while (client.TrySend("x") && ++sent < 1000) {
    std::this_thread::yield();
  }
  EXPECT_EQ(client.Read().status, 408);
}

TEST(ConnectionLimits, LongLinesAndHeaders) {
  TestServerConfig config;
  config.options.max_request_line_bytes = 100;
  config.options.max_header_bytes = 300;
  TestServer server(config);
  const std::string path(200, 'a');
  EXPECT_EQ(ErrorCode(server.Ask(Request("GET", "/" + path))), "uri_too_long");
  const std::string long_header = "x: " + std::string(400, 'a') + "\r\n";
  const RawResponse response = server.Ask(Request("GET", "/version", {}, long_header));
  EXPECT_EQ(response.status, 431);
  EXPECT_EQ(ErrorCode(response), "headers_too_large");
  EXPECT_EQ(response.Header("connection"), "close");
}

TEST(ConnectionLimits, ConnectionsBeyondTheLimitWait) {
  TestServerConfig config;
  config.options.max_connections = 2;
  TestServer server(config);
  auto first = std::make_unique<RawClient>(server.port());
  RawClient second(server.port());
  for (RawClient* client : {first.get(), &second}) {
    client->Send(Request("GET", "/version"));
    EXPECT_EQ(client->Read().status, 200);
  }
  RawClient third(server.port());
  third.Send(Request("GET", "/version"));
  first.reset();
  EXPECT_EQ(third.Read().status, 200);
}

TEST(ConnectionLimits, DrainEndsIdleConnectionsAndFinishesRunningOnes) {
  TestServer server;
  RawClient idle(server.port());
  idle.Send(Request("GET", "/version"));
  EXPECT_EQ(idle.Read().status, 200);
  RawClient running(server.port());
  running.Send(Request("POST", "/v1/chat/completions", R"({"stream":true})"));
  const auto script = server.backend().NextScript();
  script->Text("one");
  EXPECT_FALSE(running.ReadUntil("\"one\"").empty());

  server.server().Drain(SteadyClock().Now() + std::chrono::minutes(10));
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_EQ(server.Ask(Request("GET", "/ready")).status, 503);
  EXPECT_EQ(server.Ask(Request("GET", "/live")).status, 200);
  const RawResponse refused = server.Ask(Request("POST", "/v1/chat/completions", "{}"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(ErrorCode(refused), "shutting_down");
  EXPECT_EQ(refused.Header("connection"), "close");
  EXPECT_EQ(refused.Header("x-should-retry"), "true");
  EXPECT_EQ(refused.Header("retry-after"), "60");  // the time left, but a minute at most

  script->Finish();
  script->End();
  EXPECT_NE(running.ReadUntil("0\r\n\r\n").find("[DONE]"), std::string::npos);
  EXPECT_EQ(running.ReadAll(), "");
}

TEST(ConnectionLimits, AConnectionThatHasNotAskedYetIsStillAnswered) {
  TestServer server;
  RawClient quiet(server.port());
  // Accepted in order, so `quiet` has its connection when this is answered.
  EXPECT_EQ(server.Ask(Request("GET", "/live")).status, 200);
  server.server().Drain(SteadyClock().Now() + std::chrono::seconds(20));
  RawClient late(server.port());
  for (RawClient* client : {&late, &quiet}) {
    client->Send(Request("POST", "/v1/chat/completions", "{}"));
    const RawResponse refused = client->Read();
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(ErrorCode(refused), "shutting_down");
    EXPECT_EQ(refused.Header("connection"), "close");
    EXPECT_EQ(client->ReadAll(), "");
  }
}

// Requests that are on their way, read or not, accepted or not, when the server stops.
TEST(ConnectionLimits, StopAnswersWhatWasSent) {
  constexpr int kClients = 40;
  TestServerConfig config;
  config.options.num_threads = 1;
  TestServer server(config);
  RawClient silent(server.port());
  server.server().Drain(SteadyClock().Now() + std::chrono::minutes(1));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->Send(Request("POST", "/v1/chat/completions", "{}"));
  }
  std::thread stopper([&] { server.server().Stop(SteadyClock().Now() + std::chrono::minutes(1)); });
  for (const auto& client : clients) {
    EXPECT_EQ(ErrorCode(client->Read()), "shutting_down");
  }
  clients.clear();
  stopper.join();  // long before the deadline: `silent` does not hold it up
  EXPECT_EQ(silent.ReadAll(), "");
}

TEST(ConnectionLimits, StopWaitsForRunningRequestsAndCancelsTheRest) {
  auto server = std::make_unique<TestServer>();
  RawClient client(server->port());
  client.Send(Request("POST", "/v1/chat/completions", "{}"));
  const auto script = server->backend().NextScript();
  server.reset();  // stops at once
  EXPECT_EQ(script->WaitForCancel(), engine::CancelCause::kShutdown);
  script->WaitForRelease();
  EXPECT_EQ(client.ReadAll(), "");

  server = std::make_unique<TestServer>();
  RawClient patient(server->port());
  patient.Send(Request("POST", "/v1/chat/completions", "{}"));
  const auto running = server->backend().NextScript();
  std::thread stopper(
      [&] { server->server().Stop(SteadyClock().Now() + std::chrono::seconds(10)); });
  running->Text("late");
  running->Finish();
  running->End();
  EXPECT_NE(patient.Read().body.find("late"), std::string::npos);
  stopper.join();
}

// A body that is served away from the I/O threads.
std::string LargeBody(std::string_view members = R"("auto":"done")") {
  return "{" + std::string(members) + R"(,"prompt":")" + std::string(200000, 'a') + "\"}";
}

TEST(ConnectionLimits, LargeBodiesDoNotHoldUpOthers) {
  TestServerConfig config;
  config.options.num_threads = 1;
  TestServer server(config);
  std::promise<void> release;
  server.backend().SetBeforePrepare([gate = release.get_future().share()] { gate.wait(); });
  RawClient slow(server.port());
  slow.Send(Request("POST", "/v1/completions", LargeBody()));
  RawClient gone(server.port());
  gone.Send(Request("POST", "/v1/completions", LargeBody()));
  EXPECT_EQ(server.Ask(Request("GET", "/live")).status, 200);
  EXPECT_EQ(server.Ask(Request("GET", "/health")).status, 200);
  gone.Reset();
  release.set_value();
  const RawResponse response = slow.Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_NE(response.body.find("done"), std::string::npos);
  // The connection goes on.
  slow.Send(Request("POST", "/tokenize", LargeBody()));
  EXPECT_EQ(slow.Read().status, 200);
  slow.Send(Request("GET", "/version"));
  EXPECT_EQ(slow.Read().status, 200);
}

TEST(ConnectionLimits, StopDoesNotWaitForQueuedLargeBodies) {
  auto server = std::make_unique<TestServer>();
  std::promise<void> release;
  std::promise<void> entered;
  std::once_flag once;
  server->backend().SetBeforePrepare([&, gate = release.get_future().share()] {
    std::call_once(once, [&entered] { entered.set_value(); });
    gate.wait();
  });
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<RawClient>(server->port()));
    clients.back()->Send(Request("POST", "/v1/completions", LargeBody()));
  }
  entered.get_future().wait();
  std::thread stopper([&] { server->server().Stop(SteadyClock().Now()); });
  release.set_value();
  stopper.join();
  server.reset();
}

TEST(ConnectionLimits, LargeBodiesHaveACommonLimit) {
  TestServerConfig config;
  config.options.max_body_bytes = 256 << 10;  // four of them at a time
  TestServer server(config);
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 250000\r\n\r\n";
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->Send(head + std::string(249000, ' '));
  }
  while (server.backend().num_rejections() == 0) {
    std::this_thread::yield();
  }
  // Which of them it is depends on the order in which the server read them.
  int num_refused = 0;
  for (const auto& client : clients) {
    client->ShutdownWrite();
    const RawResponse response = client->Read();
    if (response.status != 0) {
      ++num_refused;
      EXPECT_EQ(response.status, 503);
      EXPECT_EQ(ErrorCode(response), "too_many_large_bodies");
      EXPECT_NE(response.Header("retry-after"), "");
    }
  }
  // Each I/O thread may refuse one before the memory of the other's is back.
  EXPECT_GE(num_refused, 1);
  EXPECT_LE(num_refused, 2);
  // Short requests go on, and the memory comes back.
  EXPECT_EQ(server.Ask(Request("POST", "/v1/completions", R"({"auto":"x"})")).status, 200);
  clients.clear();
  int status = 0;
  for (int attempt = 0; attempt < 1000 && status != 200; ++attempt) {
    status = server.Ask(Request("POST", "/v1/completions", LargeBody())).status;
  }
  EXPECT_EQ(status, 200);
}

TEST(ConnectionLimits, ManyConnectionsComeAndGo) {
  TestServer server;
  for (int i = 0; i < 300; ++i) {
    RawClient client(server.port());
    if (i % 3 == 0) {
      client.Send(Request("GET", "/version"));
      ASSERT_EQ(client.Read().status, 200);
    } else if (i % 3 == 1) {
      client.Send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\nabc");
      client.Reset();
    }
  }
  EXPECT_EQ(server.Ask(Request("GET", "/health")).status, 200);
}

}  // namespace
}  // namespace spindle::server
