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

// Both texts, whole: 0.1, a third and a large count in the shortest form that reads back.
TEST(RegistryTest, TextsAreExact) {
  Registry registry(Labels{{"m", "a\\b\"c\nd"}});
  registry.AddCounter("c_total", "Say \"x\\y\".").Add(12345678);
  registry.AddGauge("g", "h", EngineLabels({{"k", "v"}})).Set(1.0 / 3.0);
  const Histogram histogram = registry.AddHistogram("h_seconds", "h", {0.1, 0.7, 2560});
  histogram.Observe(0.5);
  histogram.Observe(0.1);
  const std::string labels = R"(m="a\\b\"c\nd")";
  const std::string samples = "# HELP g h\n# TYPE g gauge\ng{" + labels +
                              ",engine=\"0\",k=\"v\"} 0.3333333333333333\n"
                              "# HELP h_seconds h\n# TYPE h_seconds histogram\n"
                              "h_seconds_bucket{" +
                              labels +
                              ",le=\"0.1\"} 1\n"
                              "h_seconds_bucket{" +
                              labels +
                              ",le=\"0.7\"} 2\n"
                              "h_seconds_bucket{" +
                              labels +
                              ",le=\"2560\"} 2\n"
                              "h_seconds_bucket{" +
                              labels +
                              ",le=\"+Inf\"} 2\n"
                              "h_seconds_count{" +
                              labels + "} 2\nh_seconds_sum{" + labels + "} 0.6\n";
  const std::string counter = "c_total{" + labels + "} 12345678\n";
  EXPECT_EQ(registry.Expose(false),
            "# HELP c_total Say \"x\\\\y\".\n# TYPE c_total counter\n" + counter + samples);
  EXPECT_EQ(registry.Expose(true),
            "# HELP c Say \\\"x\\\\y\\\".\n# TYPE c counter\n" + counter + samples + "# EOF\n");
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
