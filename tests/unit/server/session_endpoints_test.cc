// Administration of sessions over HTTP: which call reaches the backend, for which tenant.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/common/api_keys.h"
#include "unit/server/http_test_server.h"

namespace spindle::server {
namespace {

std::string CallOf(const RawResponse& response) {
  return response.status < 300 ? response.body : std::to_string(response.status);
}

TEST(SessionEndpoints, EveryCall) {
  TestServer server;

  struct Row {
    const char* method;
    const char* path;
    const char* call;  // as ScriptedBackend puts it, or a status
  };

  const std::vector<Row> rows = {
      {"GET", "/admin/sessions", R"({"call":"0  "})"},
      {"GET", "/admin/sessions?tenant=*", R"({"call":"0 all "})"},
      {"GET", "/admin/sessions/chat", R"({"call":"1  chat"})"},
      {"GET", "/admin/sessions/chat?tenant=t", R"({"call":"1 t chat"})"},
      {"POST", "/admin/sessions/chat/restore", R"({"call":"2  chat"})"},
      {"POST", "/admin/sessions/chat/pin", R"({"call":"3  chat"})"},
      {"POST", "/admin/sessions/chat/unpin", R"({"call":"4  chat"})"},
      {"DELETE", "/admin/sessions/chat", R"({"call":"5  chat"})"},
      {"GET", "/admin/sessions/none", "404"},
      {"DELETE", "/admin/sessions/none", "404"},
      {"DELETE", "/admin/sessions/chat?tenant=*", "400"},
      {"POST", "/admin/sessions/chat", "405"},
      {"GET", "/admin/sessions/chat/restore", "405"},
      {"DELETE", "/admin/sessions", "405"},
      {"DELETE", "/admin/kv", "405"},
      {"GET", "/v1/admin/sessions", "404"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(CallOf(server.Ask(Request(row.method, row.path))), row.call)
        << row.method << ' ' << row.path;
  }
  EXPECT_EQ(server.Ask(Request("POST", "/admin/sessions/chat/restore")).status, 202);
  EXPECT_EQ(server.Ask(Request("PUT", "/admin/sessions/chat")).Header("allow"),
            "GET, HEAD, DELETE");
}

TEST(SessionEndpoints, FieldsAreRefusedNotIgnored) {
  TestServer server;
  for (const auto& [method, path] :
       std::vector<std::pair<std::string, std::string>>{{"POST", "/admin/sessions/chat/restore"},
                                                        {"POST", "/admin/sessions/chat/pin"},
                                                        {"POST", "/admin/sessions/chat/unpin"},
                                                        {"DELETE", "/admin/sessions/chat"},
                                                        {"POST", "/admin/requests/known/cancel"},
                                                        {"POST", "/admin/cache/reset"},
                                                        {"POST", "/admin/drain"}}) {
    const RawResponse refused = server.Ask(Request(method, path, R"({"ttl":5})"));
    EXPECT_EQ(refused.status, 400) << path;
    EXPECT_EQ(ErrorCode(refused), "unknown_parameter") << path;
    EXPECT_NE(refused.body.find(R"("param":"ttl")"), std::string::npos) << refused.body;
    EXPECT_EQ(ErrorCode(server.Ask(Request(method, path, R"({"":5})"))), "unknown_parameter");
    EXPECT_EQ(ErrorCode(server.Ask(Request(method, path, "ttl=5"))), "invalid_json") << path;
    EXPECT_EQ(ErrorCode(server.Ask(Request(method, path, "[5]"))), "invalid_type") << path;
    EXPECT_LT(server.Ask(Request(method, path, "{}")).status, 300) << path;
  }
  EXPECT_EQ(server.num_drains(), 1);
}

TEST(SessionEndpoints, KeysAreTenants) {
  TestServerConfig config;
  config.keys.keys = {"k1"};
  config.keys.admin_keys = {"a1"};
  TestServer server(config);
  const std::string user = "x-api-key: k1\r\n";
  const std::string admin = "x-api-key: a1\r\n";
  EXPECT_EQ(server.Ask(Request("GET", "/admin/sessions")).status, 401);
  EXPECT_EQ(server.Ask(Request("GET", "/admin/sessions", {}, user)).status, 403);
  EXPECT_EQ(server.Ask(Request("DELETE", "/admin/sessions/chat", {}, user)).status, 403);
  const std::string own = server.Ask(Request("GET", "/admin/sessions/chat", {}, admin)).body;
  EXPECT_NE(own, R"({"call":"1  chat"})");  // the admin key's tenant, not everybody's
  EXPECT_EQ(server.Ask(Request("GET", "/admin/sessions/chat?tenant=t", {}, admin)).body,
            R"({"call":"1 t chat"})");
}

// Without admin keys a local user key may administer, but only its own sessions.
TEST(SessionEndpoints, UserKeysSeeTheirOwnOnly) {
  TestServerConfig config;
  config.keys.keys = {"k1"};
  TestServer server(config);
  const std::string user = "x-api-key: k1\r\n";
  const std::string own = server.Ask(Request("GET", "/admin/sessions/chat", {}, user)).body;
  const std::string tenant = own.substr(own.find(' ') + 1, own.rfind(' ') - own.find(' ') - 1);
  EXPECT_EQ(tenant.size(), 16U);
  const auto status = [&](const std::string& path) {
    return server.Ask(Request("GET", path, {}, user)).status;
  };
  EXPECT_EQ(status("/admin/sessions?tenant=" + tenant), 200);
  EXPECT_EQ(status("/admin/sessions?tenant=*"), 403);
  EXPECT_EQ(status("/admin/sessions/chat?tenant=other"), 403);
}

}  // namespace
}  // namespace spindle::server
