#include "server/http/router.h"

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace spindle::server {
namespace {

TEST(Router, PathsOfTargets) {
  EXPECT_EQ(TargetPath("/a/b?c=d"), "/a/b");
  EXPECT_EQ(TargetPath("http://host:1/a?b"), "/a");
  EXPECT_EQ(TargetPath("http://host"), "/");
  EXPECT_EQ(TargetPath("/a?u=http://x/y"), "/a");
  EXPECT_EQ(TargetPath("*"), "*");
  EXPECT_EQ(TargetPath("host:443"), "host:443");
}

TEST(Router, ArgumentsAreDecodedOnce) {
  const Router router("", true, false);
  EXPECT_EQ(router.Resolve("GET", "/v1/models/a%2Fb%252F").argument, "a/b%2F");
  EXPECT_EQ(router.Resolve("GET", "/v1/models/a/b").argument, "a/b");
  EXPECT_EQ(router.Resolve("GET", "/v1/models/%zz").endpoint, EndpointId::kUnknown);
  EXPECT_EQ(router.Resolve("GET", "/v1/models/%4").endpoint, EndpointId::kUnknown);
  EXPECT_EQ(router.Resolve("GET", "/v1/models/").endpoint, EndpointId::kUnknown);
  EXPECT_EQ(router.Resolve("POST", "/admin/requests/r:1/cancel").argument, "r:1");
  EXPECT_EQ(router.Resolve("POST", "/admin/requests//cancel").endpoint, EndpointId::kUnknown);
}

TEST(Router, Sessions) {
  const Router router("", true, false);
  const Route one = router.Resolve("DELETE", "/admin/sessions/a%2Fb?tenant=t");
  EXPECT_EQ(one.endpoint, EndpointId::kAdminSession);
  EXPECT_EQ(one.argument, "a/b");
  EXPECT_TRUE(one.method_allowed);
  EXPECT_EQ(one.Allow(), "GET, HEAD, DELETE");
  EXPECT_EQ(one.access, Access::kAdmin);
  EXPECT_FALSE(router.Resolve("PUT", "/admin/sessions/a").method_allowed);
  EXPECT_EQ(router.Resolve("POST", "/admin/sessions/restore").argument, "restore");
  EXPECT_EQ(router.Resolve("POST", "/admin/sessions//restore").endpoint, EndpointId::kUnknown);
  EXPECT_EQ(router.Resolve("POST", "/admin/sessions/a/unpin").endpoint,
            EndpointId::kAdminSessionUnpin);
}

TEST(Router, QueryValues) {
  EXPECT_EQ(QueryValue("/a?tenant=x", "tenant"), "x");
  EXPECT_EQ(QueryValue("/a?b=1&tenant=*#f", "tenant"), "*");
  EXPECT_EQ(QueryValue("/a?tenant=", "tenant"), "");
  EXPECT_EQ(QueryValue("/a?tenants=x&tenan=y", "tenant"), std::nullopt);
  EXPECT_EQ(QueryValue("/a", "tenant"), std::nullopt);
  EXPECT_EQ(QueryValue("/a?&&", "tenant"), std::nullopt);
}

TEST(Router, FixedPathsAreNotDecoded) {
  const Router router("", true, false);
  for (const char* path : {"/v1/chat%2Fcompletions",
                           "/%76ersion",
                           "/v1//models",
                           "/V1/models",
                           "/v1/v1/models",
                           "/v1",
                           "/./version"}) {
    EXPECT_EQ(router.Resolve("GET", path).endpoint, EndpointId::kUnknown) << path;
  }
}

TEST(Router, LabelsAreDistinctAndNeverFromRequests) {
  std::set<std::string_view> labels;
  for (size_t i = 0; i < kNumEndpoints; ++i) {
    EXPECT_TRUE(labels.insert(EndpointLabel(static_cast<EndpointId>(i))).second) << i;
  }
}

}  // namespace
}  // namespace spindle::server
