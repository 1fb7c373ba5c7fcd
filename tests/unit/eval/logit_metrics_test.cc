// Figures of a position against their formulas, written out over all tokens.
#include "eval/logit_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::eval {
namespace {

std::vector<double> Softmax(const std::vector<float>& logits) {
  double sum = 0;
  std::vector<double> probabilities;
  for (const float logit : logits) {
    probabilities.push_back(std::exp(double{logit}));
    sum += probabilities.back();
  }
  for (double& probability : probabilities) {
    probability /= sum;
  }
  return probabilities;
}

std::vector<float> DrawLogits(std::mt19937_64& random, size_t count) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (float& logit : logits) {
    logit = normal(random);
  }
  return logits;
}

TEST(LogitMetrics, FollowTheFormulas) {
  const uint64_t seed = test::RandomSeed(2604);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    const std::vector<float> dense = DrawLogits(random, 300);
    const std::vector<float> other = DrawLogits(random, 300);
    const auto token = static_cast<TokenId>(random() % 300);
    const std::vector<double> p = Softmax(dense);
    const std::vector<double> q = Softmax(other);
    double kl = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      kl += p[i] * std::log(p[i] / q[i]);
    }
    const StepScores scores = CompareLogits(ReadLogits(dense), ReadLogits(other), token);
    const auto at = static_cast<size_t>(token);
    EXPECT_NEAR(scores.kl, kl, 1e-9);
    EXPECT_NEAR(scores.dense_nll, -std::log(p[at]), 1e-9);
    EXPECT_NEAR(scores.nll, -std::log(q[at]), 1e-9);
    EXPECT_NEAR(scores.probability_change, q[at] - p[at], 1e-9);
    EXPECT_EQ(scores.same_top,
              std::max_element(p.begin(), p.end()) - p.begin() ==
                  std::max_element(q.begin(), q.end()) - q.begin());
  }
}

TEST(LogitMetrics, OfARowAndItself) {
  std::mt19937_64 random(7);
  const std::vector<float> logits = DrawLogits(random, 50);
  const StepScores scores = CompareLogits(ReadLogits(logits), ReadLogits(logits), 3);
  EXPECT_EQ(scores.kl, 0);
  EXPECT_EQ(scores.probability_change, 0);
  EXPECT_TRUE(scores.same_top);
  EXPECT_EQ(scores.top_overlap, 1);
}

TEST(LogitMetrics, TokensThatTheStandardRulesOutAddNothing) {
  std::vector<float> logits = {1, 2, 3, 4, 5, 6};
  logits[2] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(CompareLogits(ReadLogits(logits), ReadLogits(logits), 3).kl, 0);
}

TEST(LogitMetrics, BestTokensInOrderEqualOnesById) {
  const std::vector<float> logits = {1, 5, 2, 5, -1, 7, 2, 0};
  EXPECT_EQ(ReadLogits(logits).top, (std::array<TokenId, kTopTokens>{5, 1, 3, 2, 6}));
}

TEST(LogitMetrics, OverlapCountsSharedTokens) {
  std::vector<float> dense(20, 0.0F);
  std::vector<float> other(20, 0.0F);
  for (size_t i = 0; i < 5; ++i) {
    dense[i] = 10.0F - static_cast<float>(i);
    other[i + 2] = 10.0F - static_cast<float>(i);
  }
  EXPECT_DOUBLE_EQ(CompareLogits(ReadLogits(dense), ReadLogits(other), 0).top_overlap, 0.6);
}

TEST(LogitMetrics, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {1000, 999, 0, -1000, 2, 3};
  const LogitRow row = ReadLogits(logits);
  EXPECT_NEAR(row.log_sum_exp, 1000 + std::log1p(std::exp(-1.0)), 1e-9);
  EXPECT_NEAR(NegativeLogLikelihood(row, 3), 2000 + std::log1p(std::exp(-1.0)), 1e-9);
}

}  // namespace
}  // namespace spindle::eval
