#include "server/common/request_ids.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/client_name.h"

namespace spindle::server {
namespace {

TEST(RequestIds, RandomIdsAreValidAndDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = RandomId();
    EXPECT_EQ(id.size(), 32U);
    EXPECT_TRUE(IsClientName(id));
    EXPECT_TRUE(ids.insert(id).second);
  }
}

TEST(RequestIds, ActiveIdsGetASuffixAndReleasedOnesAreFree) {
  RequestIds ids;
  {
    const RequestIds::Lease first = ids.Acquire("same");
    const RequestIds::Lease second = ids.Acquire("same");
    EXPECT_EQ(first.id(), "same");
    EXPECT_EQ(second.id().substr(0, 5), "same-");
    EXPECT_EQ(ids.num_active(), 2U);
  }
  EXPECT_EQ(ids.num_active(), 0U);
  EXPECT_EQ(ids.Acquire("same").id(), "same");
}

TEST(RequestIds, LongIdsStayWithinTheLimitWithTheirSuffix) {
  RequestIds ids;
  const std::string id(128, 'x');
  const RequestIds::Lease first = ids.Acquire(id);
  const RequestIds::Lease second = ids.Acquire(id);
  EXPECT_NE(second.id(), id);
  EXPECT_TRUE(IsClientName(second.id()));
}

TEST(RequestIds, MovedLeasesReleaseOnce) {
  RequestIds ids;
  RequestIds::Lease outer;
  {
    RequestIds::Lease inner = ids.Acquire(std::nullopt);
    outer = std::move(inner);
  }
  EXPECT_EQ(ids.num_active(), 1U);
  outer = ids.Acquire("next");
  EXPECT_EQ(ids.num_active(), 1U);
  EXPECT_EQ(outer.id(), "next");
}

}  // namespace
}  // namespace spindle::server
