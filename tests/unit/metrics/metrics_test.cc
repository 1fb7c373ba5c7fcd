#include "metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spindle::metrics {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RegistryTest, FamiliesExistBeforeTheyMove) {
  Registry registry(Labels{{"model_name", "smol"}});
  const Counter counter = registry.AddCounter("spindle_things_total", "Things.", {{"kind", "a"}});
  EXPECT_THAT(registry.Expose(false),
              HasSubstr("spindle_things_total{model_name=\"smol\",kind=\"a\"} 0"));
  counter.Add(2);
  EXPECT_THAT(registry.Expose(false),
              HasSubstr("spindle_things_total{model_name=\"smol\",kind=\"a\"} 2"));
}

TEST(RegistryTest, TheSameSeriesIsSharedBetweenHandles) {
  Registry registry(Labels{});
  const Counter first = registry.AddCounter("c_total", "h");
  const Counter second = registry.AddCounter("c_total", "h");
  first.Add();
  EXPECT_EQ(second.Value(), 1.0);
}

TEST(RegistryTest, OpenMetricsDropsTotalFromTheFamilyAndEnds) {
  Registry registry(Labels{});
  registry.AddCounter("c_total", "h").Add();
  registry.AddHistogram("h", "help", {1.0, 2.0}).Observe(1.5);
  const std::string text = registry.Expose(true);
  EXPECT_THAT(text, HasSubstr("# TYPE c counter\nc_total 1\n"));
  EXPECT_THAT(text,
              HasSubstr("h_bucket{le=\"2\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_count 1\nh_sum 1.5\n"));
  EXPECT_TRUE(text.ends_with("# EOF\n"));
  EXPECT_THAT(registry.Expose(false), Not(HasSubstr("# EOF")));
}

TEST(RegistryTest, ScrapeRefreshesGauges) {
  Registry registry(Labels{});
  const Gauge gauge = registry.AddGauge("g", "h");
  registry.OnScrape([gauge] { gauge.Set(7); });
  EXPECT_THAT(registry.Expose(false), HasSubstr("\ng 7"));
}

TEST(OneTwoFiveTest, EndsAtTheFirstBoundThatCovers) {
  EXPECT_THAT(OneTwoFive(30), ElementsAre(1, 2, 5, 10, 20, 50));
  EXPECT_THAT(OneTwoFive(1), ElementsAre(1));
}

}  // namespace
}  // namespace spindle::metrics
