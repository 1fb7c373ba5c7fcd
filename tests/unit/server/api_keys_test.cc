#include "server/common/api_keys.h"

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace spindle::server {
namespace {

std::unique_ptr<ApiKeys> Make(const ApiKeyOptions& options, const Clock& clock = SteadyClock()) {
  auto keys = ApiKeys::Create(options, clock);
  EXPECT_TRUE(keys.ok()) << keys.status();
  return *std::move(keys);
}

// "ok", or the failure.
std::string Outcome(const ApiKeys& keys,
                    std::optional<std::string_view> key,
                    KeyScope scope,
                    bool loopback) {
  const auto outcome = keys.Authenticate(key, scope, loopback);
  if (const auto* failure = std::get_if<AuthFailure>(&outcome)) {
    switch (*failure) {
      case AuthFailure::kMissing:
        return "missing";
      case AuthFailure::kInvalid:
        return "invalid";
      case AuthFailure::kForbidden:
        return "forbidden";
      case AuthFailure::kNotLoopback:
        return "not local";
    }
  }
  return "ok";
}

TEST(ApiKeys, WhoMayDoWhat) {
  const auto open = Make({});
  const auto users = Make({.keys = {"u"}});
  const auto admin_only = Make({.admin_keys = {"a"}});
  const auto both = Make({.keys = {"u"}, .admin_keys = {"a"}});

  struct Row {
    const ApiKeys* keys;
    std::optional<std::string_view> key;
    KeyScope scope;
    bool loopback;
    const char* outcome;
  };

  const std::optional<std::string_view> none;
  const std::vector<Row> rows = {
      {open.get(), none, KeyScope::kUser, false, "ok"},
      {open.get(), "whatever", KeyScope::kUser, false, "ok"},
      {open.get(), none, KeyScope::kAdmin, true, "ok"},
      {open.get(), none, KeyScope::kAdmin, false, "not local"},
      {users.get(), none, KeyScope::kUser, true, "missing"},
      {users.get(), "x", KeyScope::kUser, true, "invalid"},
      {users.get(), "", KeyScope::kUser, true, "invalid"},
      {users.get(), "u", KeyScope::kUser, false, "ok"},
      {users.get(), none, KeyScope::kAdmin, true, "missing"},
      {users.get(), "u", KeyScope::kAdmin, true, "ok"},
      {users.get(), "u", KeyScope::kAdmin, false, "not local"},
      {admin_only.get(), none, KeyScope::kUser, false, "ok"},
      {admin_only.get(), none, KeyScope::kAdmin, true, "missing"},
      {admin_only.get(), "x", KeyScope::kAdmin, true, "invalid"},
      {admin_only.get(), "a", KeyScope::kAdmin, false, "ok"},
      {both.get(), "u", KeyScope::kUser, false, "ok"},
      {both.get(), "a", KeyScope::kUser, false, "ok"},
      {both.get(), "u", KeyScope::kAdmin, true, "forbidden"},
      {both.get(), "a", KeyScope::kAdmin, false, "ok"},
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(Outcome(*rows[i].keys, rows[i].key, rows[i].scope, rows[i].loopback), rows[i].outcome)
        << i;
  }
  EXPECT_FALSE(open->closed());
  EXPECT_TRUE(users->closed());
}

TEST(ApiKeys, GrantsCarryTheirLimits) {
  const std::string path = ::testing::TempDir() + "/keys-grants.txt";
  std::ofstream(path) << "name=ci key=k min_priority=-5 trusted=on\nother\n";
  const auto keys = Make({.key_file = path});
  const auto ci = std::get<ApiKeys::Grant>(keys->Authenticate("k", KeyScope::kUser, false));
  EXPECT_EQ(ci.name, "ci");
  EXPECT_EQ(ci.min_priority, -5);
  EXPECT_TRUE(ci.trusted);
  EXPECT_FALSE(ci.retention);
  const auto other = std::get<ApiKeys::Grant>(keys->Authenticate("other", KeyScope::kUser, false));
  EXPECT_EQ(other.min_priority, 0);
  EXPECT_NE(other.tenant, ci.tenant);
  const auto open = std::get<ApiKeys::Grant>(Make({})->Authenticate("k", KeyScope::kUser, false));
  EXPECT_EQ(open.tenant, "");
  EXPECT_EQ(open.min_priority, -100);
}

TEST(ApiKeys, ConcurrencyIsCountedPerKeyAndGivenBack) {
  const std::string path = ::testing::TempDir() + "/keys-concurrency.txt";
  std::ofstream(path) << "key=k concurrency=2\nfree\n";
  const auto keys = Make({.key_file = path});
  const auto grant = std::get<ApiKeys::Grant>(keys->Authenticate("k", KeyScope::kUser, false));
  const auto unlimited =
      std::get<ApiKeys::Grant>(keys->Authenticate("free", KeyScope::kUser, false));
  auto first = keys->Admit(grant);
  {
    const auto second = keys->Admit(grant);
    EXPECT_TRUE(std::holds_alternative<ApiKeys::Slot>(second));
    const auto third = keys->Admit(grant);
    ASSERT_TRUE(std::holds_alternative<LimitRefusal>(third));
    EXPECT_EQ(std::get<LimitRefusal>(third).kind, LimitFailure::kConcurrency);
    EXPECT_GE(std::get<LimitRefusal>(third).retry_after, std::chrono::seconds(1));
    EXPECT_TRUE(std::holds_alternative<ApiKeys::Slot>(keys->Admit(unlimited)));
  }
  const auto again = keys->Admit(grant);
  EXPECT_TRUE(std::holds_alternative<ApiKeys::Slot>(again));
  // Counters outlive a reload.
  ASSERT_TRUE(keys->Reload().ok());
  const auto reloaded = std::get<ApiKeys::Grant>(keys->Authenticate("k", KeyScope::kUser, false));
  EXPECT_TRUE(std::holds_alternative<LimitRefusal>(keys->Admit(reloaded)));
  first = ApiKeys::Slot();
  EXPECT_TRUE(std::holds_alternative<ApiKeys::Slot>(keys->Admit(reloaded)));
}

TEST(ApiKeys, RequestsPerMinute) {
  const std::string path = ::testing::TempDir() + "/keys-rpm.txt";
  std::ofstream(path) << "key=k rpm=3\n";
  VirtualClock clock;
  const auto keys = Make({.key_file = path}, clock);
  const auto grant = std::get<ApiKeys::Grant>(keys->Authenticate("k", KeyScope::kUser, false));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::holds_alternative<ApiKeys::Slot>(keys->Admit(grant))) << i;
  }
  const auto refused = keys->Admit(grant);
  ASSERT_TRUE(std::holds_alternative<LimitRefusal>(refused));
  EXPECT_EQ(std::get<LimitRefusal>(refused).kind, LimitFailure::kRate);
  EXPECT_EQ(std::get<LimitRefusal>(refused).retry_after, std::chrono::seconds(20));
  clock.Advance(std::chrono::seconds(19));
  EXPECT_TRUE(std::holds_alternative<LimitRefusal>(keys->Admit(grant)));
  clock.Advance(std::chrono::milliseconds(1001));
  EXPECT_TRUE(std::holds_alternative<ApiKeys::Slot>(keys->Admit(grant)));
  EXPECT_TRUE(std::holds_alternative<LimitRefusal>(keys->Admit(grant)));
  // Never more than a minute's worth at once.
  clock.Advance(std::chrono::hours(1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::holds_alternative<ApiKeys::Slot>(keys->Admit(grant))) << i;
  }
  EXPECT_TRUE(std::holds_alternative<LimitRefusal>(keys->Admit(grant)));
}

TEST(ApiKeys, ReloadReplacesKeysAndKeepsThemOnErrors) {
  const std::string path = ::testing::TempDir() + "/keys-reload.txt";
  std::ofstream(path) << "old\n";
  const auto keys = Make({.key_file = path});
  std::ofstream(path) << "key=bad role=king\n";
  EXPECT_FALSE(keys->Reload().ok());
  EXPECT_EQ(Outcome(*keys, "old", KeyScope::kUser, false), "ok");
  std::ofstream(path) << "new\n";
  EXPECT_TRUE(keys->Reload().ok());
  EXPECT_EQ(Outcome(*keys, "old", KeyScope::kUser, false), "invalid");
  EXPECT_EQ(Outcome(*keys, "new", KeyScope::kUser, false), "ok");
}

TEST(ApiKeys, MissingFilesAndEmptyKeysAreErrors) {
  EXPECT_EQ(ApiKeys::Create({.key_file = "/nowhere/keys"}, SteadyClock()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ApiKeys::Create({.key_file = "/"}, SteadyClock()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ApiKeys::Create({.admin_key_file = "/dev/zero"}, SteadyClock()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ApiKeys::Create({.keys = {""}}, SteadyClock()).ok());
}

TEST(ApiKeys, BearerTokens) {
  EXPECT_EQ(BearerToken("Bearer abc"), "abc");
  EXPECT_EQ(BearerToken("bEARER   abc"), "abc");
  EXPECT_EQ(BearerToken("Bearer "), "");
  EXPECT_EQ(BearerToken("Bearerabc"), std::nullopt);
  EXPECT_EQ(BearerToken("Bearer"), std::nullopt);
  EXPECT_EQ(BearerToken("Basic abc"), std::nullopt);
  EXPECT_EQ(BearerToken(""), std::nullopt);
}

}  // namespace
}  // namespace spindle::server
