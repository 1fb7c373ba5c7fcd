#include "kv/disk/tier_health.h"

#include <algorithm>
#include <chrono>

#include <gtest/gtest.h>

namespace spindle::kv::disk {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

class TierHealthTest : public ::testing::Test {
 protected:
  // Eight errors at once; returns the wait for the first probe.
  Duration BeginOutage() {
    for (uint32_t i = 1; i < options.max_errors; ++i) {
      EXPECT_FALSE(health.CountError(now));
    }
    EXPECT_TRUE(health.CountError(now));
    EXPECT_EQ(health.state(now), TierState::kDegraded);
    return health.probe_wait();
  }

  DiskOptions options;
  TierHealth health{options};
  TimePoint now{minutes(100)};
};

TEST_F(TierHealthTest, OnlyErrorsWithinTheWindowCount) {
  for (uint32_t i = 1; i < options.max_errors; ++i) {
    EXPECT_FALSE(health.CountError(now));
  }
  now += options.error_window;
  EXPECT_FALSE(health.CountError(now));
  EXPECT_EQ(health.state(now), TierState::kOk);
  EXPECT_EQ(health.NextChange(now), std::nullopt);
}

TEST_F(TierHealthTest, ProbesBackOffUpToTheirBound) {
  Duration expected = BeginOutage();
  EXPECT_EQ(expected, options.probe_wait);
  for (int probe = 0; probe < 12; ++probe) {
    EXPECT_EQ(health.NextChange(now), now + expected);
    EXPECT_FALSE(health.ProbeDue(now + expected - milliseconds(1)));
    now += expected;
    EXPECT_TRUE(health.ProbeDue(now));
    health.ProbeFailed(now);
    expected = std::min<Duration>(2 * expected, options.max_probe_wait);
    EXPECT_EQ(health.probe_wait(), expected);
  }
  EXPECT_EQ(expected, options.max_probe_wait);
  health.ProbePassed(now);
  EXPECT_EQ(health.state(now), TierState::kOk);
  EXPECT_FALSE(health.ProbeDue(now + minutes(60)));
}

TEST_F(TierHealthTest, ErrorsOfAnOutageDoNotCountAfterIt) {
  BeginOutage();
  EXPECT_FALSE(health.CountError(now)) << "it is off already";
  now += options.probe_wait;
  health.ProbePassed(now);
  for (uint32_t i = 1; i < options.max_errors; ++i) {
    EXPECT_FALSE(health.CountError(now));
  }
}

TEST_F(TierHealthTest, ADeviceThatPassesProbesButFailsIsTriedLessAndLess) {
  EXPECT_EQ(BeginOutage(), options.probe_wait);
  health.ProbePassed(now);
  now += seconds(1);
  EXPECT_EQ(BeginOutage(), 2 * options.probe_wait);
  health.ProbePassed(now);
  now += options.max_probe_wait - seconds(1);
  EXPECT_EQ(BeginOutage(), 4 * options.probe_wait);
  health.ProbePassed(now);
  now += options.max_probe_wait;
  EXPECT_EQ(BeginOutage(), options.probe_wait) << "it was well for long enough";
}

TEST_F(TierHealthTest, AFullDeviceStopsStoresForAWhile) {
  EXPECT_TRUE(health.PauseStores(now));
  EXPECT_EQ(health.state(now), TierState::kReadOnly);
  EXPECT_EQ(health.NextChange(now), now + options.full_pause);
  now += options.full_pause - milliseconds(1);
  EXPECT_FALSE(health.PauseStores(now)) << "it goes on";
  now += options.full_pause;
  EXPECT_EQ(health.state(now), TierState::kOk);
  EXPECT_EQ(health.NextChange(now), std::nullopt);
  EXPECT_TRUE(health.PauseStores(now)) << "the next try met a full device again";
}

TEST_F(TierHealthTest, AClockThatIsSetBackEndsWaits) {
  health.PauseStores(now);
  EXPECT_EQ(health.state(now - seconds(1)), TierState::kOk);
  BeginOutage();
  EXPECT_TRUE(health.ProbeDue(now - seconds(1)));
  EXPECT_EQ(health.NextChange(now - seconds(1)), now - seconds(1));
}

}  // namespace
}  // namespace spindle::kv::disk
