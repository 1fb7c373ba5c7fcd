#include "eval/statistics.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace spindle::eval {
namespace {

TEST(Statistics, PercentilesInterpolate) {
  // numpy.percentile([4, 1, 3, 2], [0, 25, 50, 90, 100])
  const std::vector<double> values = {4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(Percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.25), 1.75);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.9), 3.7);
  EXPECT_DOUBLE_EQ(Percentile(values, 1), 4);
}

TEST(Statistics, BootstrapHasTheWidthOfTheStandardError) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(5, 2);
  std::vector<double> units(400);
  for (double& unit : units) {
    unit = normal(random);
  }
  // 2 · 1.96 · 2 / sqrt(400) = 0.392; the interval itself varies by a few per cent.
  const Interval interval = BootstrapMean(units, 1);
  EXPECT_NEAR(interval.high - interval.low, 0.392, 0.06);
  EXPECT_NEAR((interval.high + interval.low) / 2, Mean(units), 0.03);
  EXPECT_EQ(interval.low, BootstrapMean(units, 1).low) << "the seed decides";
  const Interval single = BootstrapMean(std::vector<double>{4}, 1);
  EXPECT_EQ(single.low, 4);
  EXPECT_EQ(single.high, 4);
}

TEST(Statistics, SlopeOfALine) {
  EXPECT_DOUBLE_EQ(Slope(std::vector<double>{1, 3, 5, 7}), 2);
  EXPECT_NEAR(Slope(std::vector<double>{2, 1, 4}), 1, 1e-12);
  EXPECT_EQ(Slope(std::vector<double>{9}), 0);
  EXPECT_EQ(Slope({}), 0);
}

TEST(Statistics, McNemarIsTwiceTheBinomialTail) {
  EXPECT_DOUBLE_EQ(McNemar(0, 0), 1);
  EXPECT_NEAR(McNemar(6, 0), 2.0 / 64, 1e-12);
  EXPECT_NEAR(McNemar(1, 5), 2 * (1 + 6) / 64.0, 1e-12);
  EXPECT_EQ(McNemar(3, 3), 1);
}

}  // namespace
}  // namespace spindle::eval
