#include "eval/step_times.h"

#include <gtest/gtest.h>

namespace spindle::eval {
namespace {

std::vector<StepTimes> Times(const std::vector<std::pair<uint32_t, double>>& speedups) {
  std::vector<StepTimes> times;
  for (const auto& [context, speedup] : speedups) {
    times.push_back({.context_tokens = context, .speedup = speedup});
  }
  return times;
}

TEST(CrossoverTest, LiesBetweenTheMeasuredContexts) {
  EXPECT_EQ(Crossover(Times({{1000, 0.9}, {2000, 1.1}})), 1500U);
  EXPECT_EQ(Crossover(Times({{1000, 0.7}, {2000, 1.1}, {4000, 1.5}})), 1750U);
  EXPECT_EQ(Crossover(Times({{1000, 0.9}, {2000, 1.0}})), 2000U);
}

TEST(CrossoverTest, NothingBelowItCounts) {
  EXPECT_EQ(Crossover(Times({{500, 1.2}, {1000, 0.9}, {2000, 1.1}})), 1500U);
}

TEST(CrossoverTest, IsTheShortestContextWhereNoneIsSlower) {
  EXPECT_EQ(Crossover(Times({{256, 1.0}, {512, 1.3}})), 256U);
}

TEST(CrossoverTest, IsNoneWhereTheLongestIsSlower) {
  EXPECT_EQ(Crossover(Times({{256, 1.2}, {512, 0.99}})), std::nullopt);
}

}  // namespace
}  // namespace spindle::eval
