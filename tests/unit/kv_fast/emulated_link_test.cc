// The emulated link: rate, latency, one transfer after the other.
#include "kv/fast/emulated_link.h"

#include <cmath>
#include <thread>

#include <gtest/gtest.h>

namespace spindle::kv {
namespace {

using std::chrono::microseconds;

TEST(EmulatedLinkTest, TransfersQueueAndLatenciesOverlap) {
  EmulatedLink link({.gigabytes_per_second = 2.0F, .latency_us = 10});
  const TimePoint start{std::chrono::seconds(1)};
  EXPECT_EQ(link.Send(start, 4'000'000), start + microseconds(2010));
  EXPECT_EQ(link.Send(start, 2'000'000), start + microseconds(3010));
  EXPECT_EQ(link.Send(start + microseconds(5000), 2000), start + microseconds(5011));
  EXPECT_EQ(link.busy(), microseconds(3001));
}

TEST(EmulatedLinkTest, AwaitEndsAtTheTimeNotBefore) {
  EmulatedLink link({});
  for (const auto wait : {microseconds(50), microseconds(3000)}) {  // spun, and slept
    const TimePoint begin = SteadyClock().Now();
    const Duration waited = link.Await(begin + wait);
    EXPECT_GE(SteadyClock().Now() - begin, wait);
    EXPECT_LE(waited, SteadyClock().Now() - begin);
  }
  EXPECT_LT(link.Await(SteadyClock().Now() - microseconds(1)), microseconds(50'000));
}

TEST(EmulatedLinkTest, ClosingEndsWaitsAtOnce) {
  EmulatedLink link({.gigabytes_per_second = 0.001F});
  const TimePoint ready = link.Send(SteadyClock().Now(), uint64_t{3'600'000'000});  // an hour
  std::thread waiter([&] { EXPECT_LT(link.Await(ready), std::chrono::minutes(1)); });
  link.Close();
  waiter.join();
  EXPECT_LT(link.Await(ready), std::chrono::minutes(1));
}

TEST(EmulatedLinkTest, OptionsOutOfRangeAreRefusedByName) {
  for (const float rate : {0.0F, -1.0F, 1e5F, std::nanf("")}) {
    const absl::Status status = ValidateLinkOptions({.gigabytes_per_second = rate});
    EXPECT_NE(status.message().find("sim-link-gbps"), std::string::npos) << rate;
  }
  EXPECT_NE(ValidateLinkOptions({.latency_us = 2'000'000}).message().find("sim-link-latency-us"),
            std::string::npos);
  EXPECT_TRUE(ValidateLinkOptions({}).ok());
}

}  // namespace
}  // namespace spindle::kv
