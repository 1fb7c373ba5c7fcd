// Quest against its definition.
#include "sparse/quest/quest_algorithm.h"

#include <array>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "selection_rig.h"
#include "support/index_vectors.h"
#include "support/random_seed.h"

namespace spindle::sparse {
namespace {

uint32_t Below(std::mt19937& rng, uint32_t n) {
  return static_cast<uint32_t>(rng() % n);
}

// Small integers, so that every product and sum is exact and ties are common.
std::vector<float> SmallIntegers(size_t count, std::mt19937& rng) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(Below(rng, 9)) - 4.0F;
  }
  return values;
}

// Σ over the channels of a page: weight · max(q·m, q·M) + (1 - weight) · (q·m + q·M) / 2.
double Score(const SelectionRig& rig, uint32_t page, const float* q, uint32_t d, double weight) {
  double sum = 0;
  for (uint32_t e = 0; e < d; ++e) {
    double best = -1e300;
    double worst = 1e300;
    for (uint32_t i = 0; i < 16; ++i) {
      const double product = double{q[e]} * double{rig.Key(page * 16 + i, e)};
      best = std::max(best, product);
      worst = std::min(worst, product);
    }
    sum += weight * best + (1 - weight) * (best + worst) / 2;
  }
  return sum;
}

double Bound(const SelectionRig& rig, uint32_t page, const float* q, uint32_t d) {
  return Score(rig, page, q, d, 1);
}

// The best head's log-probability, probabilities over the candidates.
std::set<uint32_t> Expected(const SelectionRig& rig,
                            const SparseSettings& settings,
                            uint32_t budget,
                            const std::vector<float>& q,
                            uint32_t d,
                            double scale,
                            double weight) {
  const uint32_t num_pages = rig.num_tokens() / 16;
  const auto group = static_cast<uint32_t>(q.size() / d);
  const std::set<uint32_t> always = AlwaysAttended(settings, rig.num_tokens(), 16);
  std::vector<double> score(num_pages, -1e300);
  for (uint32_t head = 0; head < group; ++head) {
    std::vector<double> bounds(num_pages);
    double max = -1e300;
    double sum = 0;
    const auto is_candidate = [&](uint32_t page) {
      for (uint32_t i = 0; i < 16; ++i) {
        if (!always.contains(page * 16 + i)) {
          return true;
        }
      }
      return false;
    };
    for (uint32_t page = 0; page < num_pages; ++page) {
      bounds[page] = scale * Score(rig, page, &q[size_t{head} * d], d, weight);
      max = is_candidate(page) ? std::max(max, bounds[page]) : max;
    }
    for (uint32_t page = 0; page < num_pages; ++page) {
      sum += is_candidate(page) ? std::exp(bounds[page] - max) : 0;
    }
    for (uint32_t page = 0; page < num_pages; ++page) {
      score[page] = std::max(score[page], bounds[page] - max - std::log(sum));
    }
  }
  return NaiveChoice(
      settings, rig.num_tokens(), budget, 16, [&](uint32_t page) { return score[page]; });
}

TEST(QuestAlgorithmTest, HandExample) {
  const QuestAlgorithm algorithm;
  // Two channels in use: keys (1, -2) and (-1, 3) in every page, so m = (-1, -2), M = (1, 3).
  SelectionRig rig(algorithm, *kernels::BestKernels(), 16, DType::kBF16);
  std::vector<float> keys(64 * 16, 0.0F);
  for (uint32_t i = 0; i < 64; ++i) {
    keys[i * 16] = i % 2 == 0 ? 1.0F : -1.0F;
    keys[i * 16 + 1] = i % 2 == 0 ? -2.0F : 3.0F;
  }
  rig.Append(keys);
  const auto* const page = reinterpret_cast<const uint16_t*>(rig.index()[0].data());
  EXPECT_EQ(kernels::Bf16ToFloat(page[0]), 1.0F);
  EXPECT_EQ(kernels::Bf16ToFloat(page[1]), 3.0F);
  EXPECT_EQ(kernels::Bf16ToFloat(page[16]), -1.0F);
  EXPECT_EQ(kernels::Bf16ToFloat(page[17]), -2.0F);
  const std::vector<float> q = {2.0F, -1.0F};
  EXPECT_EQ(
      Bound(rig, 0, std::vector<float>{2, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}.data(), 16),
      4.0);
}

TEST(QuestAlgorithmTest, ChoicesEqualTheDefinition) {
  const QuestAlgorithm algorithm;
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(21)));
  uint32_t num_chosen_by_rank = 0;
#if defined(SPINDLE_SANITIZED)
  constexpr uint32_t kRounds = 100;
#else
  constexpr uint32_t kRounds = 1200;
#endif
  for (uint32_t round = 0; round < kRounds; ++round) {
    const uint32_t d = round % 3 == 0 ? 64 : 16;
    SelectionRig rig(
        algorithm, *kernels::BestKernels(), d, round % 2 == 0 ? DType::kBF16 : DType::kF32);
    const uint32_t num_tokens = 1 + Below(rng, 400);
    for (uint32_t left = num_tokens; left > 0;) {
      const uint32_t count = std::min(left, 1 + Below(rng, 90));
      rig.Append(SmallIntegers(size_t{count} * d, rng));
      left -= count;
    }
    // One head: ranks are exact. More: the logarithms of softmaxes must tell pages apart, which
    // needs scores that are no near ties; steps of 1/4 in the exponent are none.
    const uint32_t group = 1;
    const std::vector<float> q = SmallIntegers(size_t{group} * d, rng);
    SparseSettings settings{
        .sink_tokens = Below(rng, 40), .recent_tokens = Below(rng, 100), .min_context = 0};
    settings.always_ranks = round % 5 == 0;
    const double weight = std::array{1.0, 0.5, 0.25, 0.0}[round % 4];
    if (weight < 1) {
      settings.knobs = {16, weight};
    }
    const uint32_t budget = Below(rng, num_tokens + 20);
    const std::set<uint32_t> chosen = rig.Choose(settings, budget, q, 0.25F);
    ASSERT_EQ(chosen, Expected(rig, settings, budget, q, d, 0.25, weight)) << "round " << round;
    num_chosen_by_rank += chosen.size() < num_tokens ? 1U : 0U;
  }
  EXPECT_GT(num_chosen_by_rank, kRounds / 4);
}

TEST(QuestAlgorithmTest, EachHeadOfAGroupGetsItsBestPage) {
  const QuestAlgorithm algorithm;
  SelectionRig rig(algorithm, *kernels::BestKernels(), 16, DType::kBF16);
  // Page 3 is best for head 0, page 5 for head 1, by far in units of each head.
  std::vector<float> keys(160 * 16, 0.0F);
  keys[(3 * 16 + 2) * 16 + 0] = 100.0F;
  keys[(5 * 16 + 9) * 16 + 1] = 20.0F;
  rig.Append(keys);
  std::vector<float> q(32, 0.0F);
  q[0] = 1.0F;
  q[16 + 1] = 1.0F;
  const std::set<uint32_t> chosen =
      rig.Choose({.sink_tokens = 0, .recent_tokens = 1, .min_context = 0}, 32, q, 1.0F);
  EXPECT_TRUE(chosen.contains(3 * 16));
  EXPECT_TRUE(chosen.contains(5 * 16));
  EXPECT_EQ(chosen.size(), 33U);  // two pages and the row itself
}

TEST(QuestAlgorithmTest, LooseBoundsHideAKeyThatCentresFind) {
  const QuestAlgorithm algorithm;
  SelectionRig rig(algorithm, *kernels::BestKernels(), 16, DType::kBF16);
  // Page 2 holds keys of both signs, so that its bound is 60 although no product is above 0; every
  // key of page 5 has 40.
  std::vector<float> keys(160 * 16, 0.0F);
  for (uint32_t i = 0; i < 16; ++i) {
    for (uint32_t e = 0; e < 6; ++e) {
      keys[(2 * 16 + i) * 16 + e] = (i + e) % 2 == 0 ? 10.0F : -10.0F;
    }
    keys[(5 * 16 + i) * 16] = 40.0F;
  }
  rig.Append(keys);
  std::vector<float> q(16, 0.0F);
  std::fill_n(q.begin(), 6, 1.0F);
  SparseSettings settings{.sink_tokens = 0, .recent_tokens = 1, .min_context = 0};
  EXPECT_TRUE(rig.Choose(settings, 16, q, 1.0F).contains(2 * 16));
  settings.knobs = {16, 0.5};
  EXPECT_TRUE(rig.Choose(settings, 16, q, 1.0F).contains(5 * 16));
}

class QuestIndexTest : public ::testing::TestWithParam<IndexType> {};

TEST_P(QuestIndexTest, BoundsHoldAfterEveryAppend) {
  const QuestAlgorithm algorithm(GetParam());
  const kernels::VectorBlock block{.type = GetParam(), .count = 4, .dim = 128};
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(22)));
  std::normal_distribution<float> normal;
  SelectionRig one_by_one(algorithm, *kernels::BestKernels(), 64, DType::kF32);
  SelectionRig at_once(algorithm, *kernels::BestKernels(), 64, DType::kF32);
  std::vector<float> all;
  for (uint32_t i = 0; i < 200; ++i) {
    std::vector<float> key(64);
    for (float& value : key) {
      value = normal(rng);
    }
    one_by_one.Append(key);
    all.insert(all.end(), key.begin(), key.end());
  }
  at_once.Append(all);
  for (uint32_t page = 0; page < 200 / 16; ++page) {
    const auto element = [&](const SelectionRig& rig, uint32_t e) {
      return test::ElementOf(
          block, reinterpret_cast<const uint8_t*>(rig.index()[page / 4].data()), page % 4, e);
    };
    for (uint32_t e = 0; e < 128; ++e) {
      ASSERT_EQ(element(one_by_one, e), element(at_once, e));
    }
    for (uint32_t round = 0; round < 20; ++round) {
      double bound = 0;
      std::vector<float> q(64);
      for (uint32_t e = 0; e < 64; ++e) {
        q[e] = normal(rng);
        bound += double{std::max(q[e], 0.0F)} * element(at_once, e) +
                 double{std::min(q[e], 0.0F)} * element(at_once, 64 + e);
      }
      for (uint32_t i = 0; i < 16; ++i) {
        double dot = 0;
        for (uint32_t e = 0; e < 64; ++e) {
          dot += double{q[e]} * double{one_by_one.Key(page * 16 + i, e)};
        }
        ASSERT_LE(dot, bound);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         QuestIndexTest,
                         ::testing::Values(IndexType::kBf16, IndexType::kInt8));

TEST(QuestAlgorithmTest, EqualScoresTakeTheFirstPages) {
  const QuestAlgorithm algorithm;
  SelectionRig rig(algorithm, *kernels::BestKernels(), 16, DType::kBF16);
  rig.Append(std::vector<float>(160 * 16, 1.0F));
  const std::set<uint32_t> chosen =
      rig.Choose({.sink_tokens = 0, .recent_tokens = 1, .min_context = 0},
                 48,
                 std::vector<float>(16, 0.0F),
                 1.0F);
  EXPECT_EQ(*chosen.rbegin(), 159U);
  EXPECT_EQ(chosen.size(), 49U);
  EXPECT_TRUE(chosen.contains(47));
}

}  // namespace
}  // namespace spindle::sparse
