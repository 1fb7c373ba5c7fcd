// Listings, tools, health, metrics, administration, CORS.
#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/http/process_metrics.h"
#include "server/http/response.h"
#include "unit/server/http_test_server.h"

namespace spindle::server {
namespace {

using Json = nlohmann::json;

TEST(Endpoints, EveryPathAndItsAlias) {
  TestServer server;

  struct Row {
    const char* method;
    const char* path;
    int status;
  };

  const std::vector<Row> rows = {
      {"GET", "/v1/models", 200},
      {"GET", "/models", 200},
      {"GET", "/v1/models/org/smol%20model", 200},
      {"GET", "/models/org%2Fsmol%20model", 200},
      {"GET", "/v1/models/nope", 404},
      {"POST", "/tokenize", 200},
      {"POST", "/v1/tokenize", 200},
      {"POST", "/detokenize", 200},
      {"POST", "/v1/detokenize", 200},
      {"POST", "/apply-template", 200},
      {"POST", "/v1/chat/completions/render", 200},
      {"POST", "/v1/chat/completions/input_tokens", 200},
      {"GET", "/health", 200},
      {"GET", "/healthz", 200},
      {"GET", "/ping", 200},
      {"GET", "/live", 200},
      {"GET", "/livez", 200},
      {"GET", "/ready", 200},
      {"GET", "/readyz", 200},
      {"GET", "/version?x=1", 200},
      {"GET", "http://host/version", 200},
      {"GET", "/metrics", 200},
      {"GET", "/admin/requests", 200},
      {"GET", "/slots", 200},
      {"GET", "/admin/kv", 200},
      {"GET", "/admin/config", 200},
      {"POST", "/admin/cache/reset", 200},
      {"POST", "/admin/requests/known/cancel", 200},
      {"POST", "/admin/requests/other/cancel", 404},
      {"GET", "/", 404},
      {"GET", "/version/", 404},
      {"GET", "/v1/version", 404},
      {"GET", "/v1/health", 404},
      {"POST", "/v1/apply-template", 404},
      {"POST", "/v1/messages", 404},
      {"POST", "/v1/embeddings", 404},
      {"GET", "/v1/files", 404},
      {"PUT", "/metrics", 405},
      {"GET", "/v1/chat/completions", 405},
      {"POST", "/v1/models", 405},
      {"DELETE", "/admin/cache/reset", 405},
  };
  for (const Row& row : rows) {
    const RawResponse response = server.Ask(Request(row.method, row.path));
    EXPECT_EQ(response.status, row.status) << row.method << ' ' << row.path;
    EXPECT_FALSE(response.Header("x-request-id").empty());
    EXPECT_EQ(response.Header("server"), "spindle/0.1.0");
    if (row.status >= 400) {
      EXPECT_EQ(ErrorCode(response),
                row.status == 405                                            ? "method_not_allowed"
                : std::string(row.path).find("models/") == std::string::npos ? "not_found"
                                                                             : "model_not_found");
    }
    EXPECT_EQ(response.Header("allow"),
              row.status != 405 ? ""
              : std::string(row.path) == "/metrics" || std::string(row.path) == "/v1/models"
                  ? "GET, HEAD"
                  : "POST");
  }
}

TEST(Endpoints, RootPathPrefixesEverything) {
  TestServerConfig config;
  config.options.root_path = "/x";
  TestServer server(config);
  EXPECT_EQ(server.Ask(Request("GET", "/x/version")).status, 200);
  EXPECT_EQ(server.Ask(Request("GET", "/x/v1/models")).status, 200);
  EXPECT_EQ(server.Ask(Request("GET", "/version")).status, 404);
  EXPECT_EQ(server.Ask(Request("GET", "/xversion")).status, 404);
}

TEST(Endpoints, HealthFollowsTheServer) {
  TestServer server;
  serving::ApiError loading = serving::MakeError(503, "model_loading", "Loading.");
  loading.progress = 0.25;
  loading.retry_after = std::chrono::milliseconds(1);
  loading.should_retry = true;
  server.backend().SetUnavailable(loading);
  for (const char* path : {"/health", "/ready", "/healthz", "/ping"}) {
    const RawResponse response = server.Ask(Request("GET", path));
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(Json::parse(response.body)["error"]["progress"], 0.25);
    EXPECT_EQ(response.Header("retry-after"), "1");
  }
  EXPECT_EQ(server.Ask(Request("GET", "/live")).status, 200);
  server.backend().SetSilence(std::chrono::minutes(5));
  EXPECT_EQ(server.Ask(Request("GET", "/livez")).status, 500);
}

TEST(Endpoints, MetricsHaveEveryFamilyFromTheFirstScrape) {
  TestServer server;
  server.server().SetModelLoadTime(std::chrono::milliseconds(1500));
  const RawResponse text = server.Ask(Request("GET", "/metrics"));
  EXPECT_EQ(text.Header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (
      const char* line : {
          R"(spindle_build_info{model_name="smol",backend="cpu",commit="abc",isa="portable",version="0.1.0"} 1)",
          R"(spindle_model_load_seconds{model_name="smol"} 1.5)",
          R"(spindle_requests_total{model_name="smol",code="200",endpoint="/v1/chat/completions"} 0)",
          "process_cpu_seconds_total",
          "process_open_fds",
          "process_resident_memory_bytes",
      }) {
    EXPECT_NE(text.body.find(line), std::string::npos) << line;
  }
  const RawResponse open = server.Ask(
      Request("GET", "/metrics", {}, "Accept: application/openmetrics-text;version=1.0.0\r\n"));
  EXPECT_EQ(open.Header("content-type"),
            "application/openmetrics-text; version=1.0.0; charset=utf-8");
  EXPECT_NE(open.body.find("# EOF"), std::string::npos);
  EXPECT_NE(open.body.find(
                R"(spindle_requests_total{model_name="smol",code="200",endpoint="/metrics"} 1)"),
            std::string::npos);
}

TEST(Endpoints, ProcessUsageLooksLikeThisProcess) {
  const auto usage = ReadProcessUsage();
  ASSERT_TRUE(usage.has_value());
  EXPECT_GT(usage->resident_bytes, uint64_t{1} << 20);
  EXPECT_GT(usage->virtual_bytes, usage->resident_bytes);
  EXPECT_GE(usage->open_fds, 3U);
  EXPECT_GE(usage->num_threads, 1U);
  EXPECT_GT(usage->start_time_unix_seconds, 1e9);
}

TEST(Endpoints, MetricsCanBeSwitchedOffOrNeedAKey) {
  TestServerConfig off;
  off.options.metrics = false;
  TestServer without(off);
  EXPECT_EQ(without.Ask(Request("GET", "/metrics")).status, 404);
  TestServerConfig guarded;
  guarded.options.metrics_auth = true;
  guarded.keys.keys = {"k1"};
  TestServer with(guarded);
  EXPECT_EQ(with.Ask(Request("GET", "/metrics")).status, 401);
  EXPECT_EQ(with.Ask(Request("GET", "/metrics", {}, "api-key: k1\r\n")).status, 200);
}

TEST(Endpoints, KeysAreTakenFromThreeHeaders) {
  TestServerConfig config;
  config.keys.keys = {"k1"};
  TestServer server(config);

  struct Row {
    const char* headers;
    int status;
    const char* code;
  };

  const std::vector<Row> rows = {
      {"", 401, "missing_api_key"},
      {"Authorization: Basic azE=\r\n", 401, "missing_api_key"},
      {"Authorization: Bearer k2\r\n", 401, "invalid_api_key"},
      {"Authorization: Bearer \r\n", 401, "missing_api_key"},
      {"Authorization: Bearer k1\r\n", 200, ""},
      {"authorization: BEARER   k1\r\n", 200, ""},
      {"x-api-key: k1\r\n", 200, ""},
      {"API-Key: k1\r\n", 200, ""},
      {"x-api-key: k\r\n", 401, "invalid_api_key"},
  };
  for (const Row& row : rows) {
    const RawResponse response = server.Ask(Request("GET", "/v1/models", {}, row.headers));
    EXPECT_EQ(response.status, row.status) << row.headers;
    if (row.status == 401) {
      EXPECT_EQ(ErrorCode(response), row.code);
      EXPECT_EQ(response.Header("www-authenticate"), "Bearer");
    }
  }
  for (const char* path : {"/health", "/live", "/ready", "/metrics", "/version"}) {
    EXPECT_EQ(server.Ask(Request("GET", path)).status, 200) << path;
  }
  EXPECT_EQ(server.Ask(Request("GET", "/no/such/path")).status, 401);
}

TEST(Endpoints, AdministrationNeedsTheAdminKey) {
  TestServerConfig config;
  config.keys.keys = {"k1"};
  config.keys.admin_keys = {"a1"};
  TestServer server(config);
  EXPECT_EQ(server.Ask(Request("GET", "/admin/kv")).status, 401);
  const RawResponse user = server.Ask(Request("GET", "/admin/kv", {}, "x-api-key: k1\r\n"));
  EXPECT_EQ(user.status, 403);
  EXPECT_EQ(ErrorCode(user), "insufficient_permissions");
  EXPECT_EQ(server.Ask(Request("GET", "/admin/kv", {}, "x-api-key: a1\r\n")).status, 200);
  EXPECT_EQ(server.Ask(Request("GET", "/v1/models", {}, "x-api-key: a1\r\n")).status, 200);
}

TEST(Endpoints, DrainAndLogLevelReachTheApplication) {
  TestServer server;
  EXPECT_EQ(server.Ask(Request("POST", "/admin/drain")).status, 200);
  EXPECT_EQ(server.num_drains(), 1);
  EXPECT_EQ(server.Ask(Request("POST", "/admin/log-level", R"({"level":"info"})")).body,
            R"({"level":"info"})");
  EXPECT_EQ(ErrorCode(server.Ask(Request("POST", "/admin/log-level", R"({"level":"loud"})"))),
            "invalid_value");
  EXPECT_EQ(ErrorCode(server.Ask(
                Request("POST", "/admin/log-level", R"({"level":"info","logger":"kv"})"))),
            "unknown_parameter");
  EXPECT_EQ(ErrorCode(server.Ask(Request("POST", "/admin/log-level", "{"))), "invalid_json");
  EXPECT_EQ(ErrorCode(server.Ask(Request("POST", "/admin/log-level", "[1]"))), "invalid_value");
}

TEST(Endpoints, CorsGrantsListedOriginsOnly) {
  TestServerConfig config;
  config.options.cors_origins = {"https://a.example"};
  config.keys.keys = {"k1"};
  TestServer server(config);
  const auto preflight = [&](const std::string& origin) {
    return server.Ask(Request("OPTIONS",
                              "/v1/chat/completions",
                              {},
                              "Origin: " + origin +
                                  "\r\nAccess-Control-Request-Method: POST\r\n"
                                  "Access-Control-Request-Headers: authorization, "
                                  "x-stainless-lang, x-evil\r\n"));
  };
  const RawResponse allowed = preflight("https://a.example");
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.Header("access-control-allow-origin"), "https://a.example");
  EXPECT_NE(allowed.Header("access-control-allow-methods").find("POST"), std::string::npos);
  const std::string headers = allowed.Header("access-control-allow-headers");
  EXPECT_NE(headers.find("x-stainless-lang"), std::string::npos);
  EXPECT_NE(headers.find("authorization"), std::string::npos);
  EXPECT_EQ(headers.find("x-evil"), std::string::npos);
  EXPECT_EQ(allowed.Header("access-control-max-age"), "600");
  EXPECT_EQ(allowed.Header("access-control-allow-credentials"), "");
  const RawResponse foreign = preflight("https://b.example");
  EXPECT_EQ(foreign.status, 204);
  EXPECT_EQ(foreign.Header("access-control-allow-origin"), "");
  EXPECT_EQ(foreign.Header("access-control-allow-methods"), "");
  // Errors are readable for allowed pages too.
  const RawResponse error =
      server.Ask(Request("GET", "/v1/models", {}, "Origin: https://a.example\r\n"));
  EXPECT_EQ(error.status, 401);
  EXPECT_EQ(error.Header("access-control-allow-origin"), "https://a.example");
  EXPECT_NE(error.Header("access-control-expose-headers").find("x-request-id"), std::string::npos);
  EXPECT_EQ(error.Header("vary"), "Origin");
}

TEST(Endpoints, CorsStarAndOff) {
  TestServerConfig config;
  config.options.cors_origins = {"*"};
  TestServer any(config);
  const std::string origin = "Origin: https://b.example\r\n";
  EXPECT_EQ(any.Ask(Request("GET", "/version", {}, origin)).Header("access-control-allow-origin"),
            "*");
  TestServer off;
  const RawResponse response = off.Ask(Request("OPTIONS", "*", {}, origin));
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.Header("access-control-allow-origin"), "");
  EXPECT_EQ(response.Header("allow"), "GET, HEAD, POST, DELETE, OPTIONS");
}

TEST(Endpoints, RequestIdsAreKeptOrReplaced) {
  TestServer server;
  const auto id = [&](const std::string& value) {
    return server.Ask(Request("GET", "/version", {}, "x-request-id: " + value + "\r\n"))
        .Header("x-request-id");
  };
  EXPECT_EQ(id("a.b_c:d-1"), "a.b_c:d-1");
  EXPECT_EQ(id(std::string(128, 'a')), std::string(128, 'a'));
  EXPECT_EQ(id(std::string(129, 'a')).size(), 32U);
  EXPECT_EQ(id("has blank").size(), 32U);
  EXPECT_EQ(id("").size(), 32U);
  EXPECT_EQ(server.ids().num_active(), 0U);
}

}  // namespace
}  // namespace spindle::server
