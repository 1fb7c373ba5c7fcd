#include "base/byte_quota.h"

#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace spindle {
namespace {

TEST(ByteQuotaTest, HoldersShareTheLimit) {
  ByteQuota quota(100, 10);
  ByteQuota::Lease a(quota);
  ByteQuota::Lease b(quota);
  EXPECT_TRUE(a.Cover(60));
  EXPECT_FALSE(b.Cover(41));
  EXPECT_EQ(b.bytes(), 0U) << "a refusal takes nothing";
  EXPECT_TRUE(b.Cover(40));
  EXPECT_FALSE(a.Cover(61));
  EXPECT_EQ(a.bytes(), 60U) << "nor gives anything back";
  EXPECT_EQ(quota.used_bytes(), 100U);
  b.Release();
  EXPECT_TRUE(a.Cover(100));
}

TEST(ByteQuotaTest, SmallHoldingsAreNotCounted) {
  ByteQuota quota(100, 10);
  ByteQuota::Lease full(quota);
  EXPECT_TRUE(full.Cover(100));
  ByteQuota::Lease small(quota);
  EXPECT_TRUE(small.Cover(10));
  EXPECT_FALSE(small.Cover(11));
  EXPECT_EQ(quota.used_bytes(), 100U);
}

TEST(ByteQuotaTest, ALeaseThatGrowsIsChargedForItsWholeSizeOnce) {
  ByteQuota quota(100, 10);
  ByteQuota::Lease lease(quota);
  for (const uint64_t bytes : {5U, 20U, 20U, 15U, 30U}) {
    EXPECT_TRUE(lease.Cover(bytes));
  }
  EXPECT_EQ(quota.used_bytes(), 30U);
}

TEST(ByteQuotaTest, WhatHasGoneOverflowsNothing) {
  ByteQuota quota(100, 0);
  ByteQuota::Lease lease(quota);
  EXPECT_TRUE(lease.Cover(1));
  EXPECT_FALSE(lease.Cover(UINT64_MAX));
  EXPECT_EQ(quota.used_bytes(), 1U);
}

TEST(ByteQuotaTest, MovesTakeTheBytesAlong) {
  ByteQuota quota(100, 0);
  {
    ByteQuota::Lease a(quota);
    ASSERT_TRUE(a.Cover(30));
    ByteQuota::Lease b(std::move(a));
    EXPECT_EQ(b.bytes(), 30U);
    ByteQuota::Lease c(quota);
    ASSERT_TRUE(c.Cover(50));
    c = std::move(b);
    EXPECT_EQ(c.bytes(), 30U);
    EXPECT_EQ(quota.used_bytes(), 30U) << "what it held before was given back";
  }
  EXPECT_EQ(quota.used_bytes(), 0U);
}

TEST(ByteQuotaTest, ThreadsNeverPassTheLimitTogether) {
  constexpr uint64_t kMax = 1000;
  ByteQuota quota(kMax, 0);
  std::atomic<bool> passed{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20000; ++round) {
        ByteQuota::Lease lease(quota);
        if (lease.Cover(kMax / 2 + 1)) {
          passed = passed || quota.used_bytes() > kMax;
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_FALSE(passed);
  EXPECT_EQ(quota.used_bytes(), 0U);
}

}  // namespace
}  // namespace spindle
