// Zones of RetroInfer against a plain definition over the clusters of its index.
#include "sparse/retroinfer/retroinfer_algorithm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "clustered_context.h"
#include "naive_selection.h"
#include "sparse/sparse_settings.h"
#include "support/random_seed.h"

namespace spindle::sparse {
namespace {

struct Zones {
  std::vector<uint32_t> order;  // of clusters, the best first
  uint32_t num_retrieved = 0;
  uint32_t num_estimated = 0;
  bool is_clear = true;  // no two scores at a border of zones are nearly equal
};

Zones ExpectedZones(const std::vector<ClusteredContext::Cluster>& clusters,
                    uint32_t budget,
                    const std::vector<float>& q) {
  const size_t group = q.size() / kContextDim;
  std::vector<double> scores(clusters.size());
  for (size_t head = 0; head < group; ++head) {
    double sum = 0;
    std::vector<double> weights;
    for (const ClusteredContext::Cluster& cluster : clusters) {
      weights.push_back(std::exp(Logit(cluster, &q[head * kContextDim])));
      sum += weights.back();
    }
    for (size_t i = 0; i < clusters.size(); ++i) {
      scores[i] += weights[i] / sum;
    }
  }
  Zones zones;
  zones.order.resize(clusters.size());
  std::iota(zones.order.begin(), zones.order.end(), 0U);
  std::stable_sort(zones.order.begin(), zones.order.end(), [&](uint32_t a, uint32_t b) {
    return scores[a] > scores[b];
  });
  size_t tokens = 0;
  for (const uint32_t i : zones.order) {
    tokens += clusters[i].positions.size();
    if (tokens > budget) {
      break;
    }
    ++zones.num_retrieved;
  }
  zones.num_estimated =
      std::min(static_cast<uint32_t>(std::lround(0.232 * static_cast<double>(clusters.size()))),
               static_cast<uint32_t>(clusters.size()) - zones.num_retrieved);
  for (const uint32_t border : {zones.num_retrieved, zones.num_retrieved + zones.num_estimated}) {
    if (border > 0 && border < clusters.size()) {
      const double above = scores[zones.order[border - 1]];
      const double below = scores[zones.order[border]];
      zones.is_clear = zones.is_clear && above - below > 1e-4 * above;
    }
  }
  return zones;
}

// The estimate of one query head as a plain average.
void ExpectEstimate(const std::vector<ClusteredContext::Cluster>& clusters,
                    const Zones& zones,
                    const float* q,
                    const float* state) {
  double total = 0;
  std::vector<double> sum(kContextDim);
  for (uint32_t rank = zones.num_retrieved; rank < zones.num_retrieved + zones.num_estimated;
       ++rank) {
    const ClusteredContext::Cluster& cluster = clusters[zones.order[rank]];
    const double weight =
        std::exp(Logit(cluster, q)) * static_cast<double>(cluster.positions.size());
    total += weight;
    for (uint32_t d = 0; d < kContextDim; ++d) {
      sum[d] += weight * cluster.value_mean[d];
    }
  }
  for (uint32_t d = 0; d < kContextDim; ++d) {
    ASSERT_NEAR(state[d] / state[kContextDim + 1], sum[d] / total, 1e-4);
  }
}

class RetroInferZonesTest : public ::testing::TestWithParam<IndexType> {};

INSTANTIATE_TEST_SUITE_P(Types,
                         RetroInferZonesTest,
                         ::testing::Values(IndexType::kBf16, IndexType::kInt8));

TEST_P(RetroInferZonesTest, EqualTheDefinition) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(31)));
#if defined(SPINDLE_SANITIZED)
  constexpr uint32_t kRounds = 5;
#else
  constexpr uint32_t kRounds = 60;
#endif
  uint32_t num_unclear = 0;
  uint32_t num_compared = 0;
  for (const uint32_t num_tokens : {1100U, 2113U, 3500U}) {
    ClusteredContext context(num_tokens, rng, GetParam());
    const uint32_t num_segments = (num_tokens - 64) / 1024;
    const auto clusters = context.Clusters(num_segments);
    for (uint32_t round = 0; round < 6 * kRounds; ++round) {
      const std::vector<float> q = RandomGroupQuery(1 + round % 4, rng);
      const uint32_t budget = static_cast<uint32_t>(rng() % (round % 7 == 0 ? 40 : num_tokens));
      SparseSettings settings{.min_context = 0};
      settings.always_ranks = true;
      const Zones zones = ExpectedZones(clusters, budget, q);
      const Selection found = context.Choose(settings, budget, q);
      if (!zones.is_clear) {
        ++num_unclear;
        continue;
      }
      ++num_compared;
      std::set<uint32_t> expected;
      uint32_t estimated_tokens = 0;
      for (uint32_t rank = 0; rank < zones.num_retrieved + zones.num_estimated; ++rank) {
        const std::vector<uint32_t>& positions = clusters[zones.order[rank]].positions;
        if (rank < zones.num_retrieved) {
          expected.insert(positions.begin(), positions.end());
        } else {
          estimated_tokens += static_cast<uint32_t>(positions.size());
        }
      }
      ASSERT_EQ(Retrieved(found), expected) << round;
      ASSERT_EQ(found.estimated_tokens, estimated_tokens);
      ASSERT_EQ(found.estimate.empty(), zones.num_estimated == 0);
      for (size_t head = 0; head * kContextDim < q.size() && !found.estimate.empty(); ++head) {
        ExpectEstimate(
            clusters, zones, &q[head * kContextDim], &found.estimate[head * (kContextDim + 2)]);
      }
    }
  }
  EXPECT_LT(num_unclear, num_compared / 20);
}

TEST(RetroInferAlgorithmTest, EveryTokenIsSteadyOrInOneCluster) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(32)));
  for (const uint32_t num_tokens : {1087U, 1088U, 2111U, 2112U, 2600U}) {
    ClusteredContext context(num_tokens, rng);
    SparseSettings settings{.min_context = 0};
    settings.always_ranks = true;
    const Selection all = context.Choose(settings, num_tokens, RandomGroupQuery(3, rng));
    const std::set<uint32_t> steady = PositionsOf(all.tiles);
    const std::set<uint32_t> retrieved = Retrieved(all);
    EXPECT_EQ(all.CountAttended(), num_tokens);
    EXPECT_EQ(steady.size() + retrieved.size(), num_tokens);
    const uint32_t indexed = num_tokens < 1088 ? 0 : num_tokens < 2112 ? 1024 : 2048;
    for (uint32_t position = 0; position < num_tokens; ++position) {
      EXPECT_EQ(steady.contains(position), position < 16 || position >= indexed) << position;
    }
    EXPECT_TRUE(all.estimate.empty());
    settings.always_ranks = false;  // then it is dense attention
    const Selection dense = context.Choose(settings, num_tokens, RandomGroupQuery(3, rng));
    EXPECT_TRUE(dense.clusters.empty());
    EXPECT_EQ(dense.CountAttended(), num_tokens);
  }
}

TEST(RetroInferAlgorithmTest, RecentTokensKeepTheirSegmentSteady) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(33)));
  ClusteredContext context(2300, rng);
  const SparseSettings settings{.recent_tokens = 400, .min_context = 0};
  const Selection selection = context.Choose(settings, 100, RandomGroupQuery(2, rng));
  const std::set<uint32_t> steady = PositionsOf(selection.tiles);
  EXPECT_EQ(*steady.upper_bound(15), 1024U);
}

// With q = 0 all clusters are equal, so the first ones are retrieved.
TEST(RetroInferAlgorithmTest, EqualScoresGoByPosition) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(34)));
  ClusteredContext context(2300, rng);
  const SparseSettings settings{.min_context = 0};
  const Selection selection =
      context.Choose(settings, 300, std::vector<float>(2 * kContextDim, 0.0F));
  ASSERT_FALSE(selection.clusters.empty());
  for (size_t i = 0; i < selection.clusters.size(); ++i) {
    EXPECT_EQ(selection.clusters[i].segment, 0U);
    EXPECT_EQ(selection.clusters[i].id, i);
  }
}

// The estimate never overstates a cluster's mass, and by no more than cosh of its spread.
TEST(RetroInferAlgorithmTest, EstimatedMassIsWithinItsBound) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(35)));
  ClusteredContext context(1100, rng);
  for (int round = 0; round < 20; ++round) {
    const std::vector<float> q = RandomGroupQuery(1, rng);
    for (const ClusteredContext::Cluster& cluster : context.Clusters(1)) {
      const double logit = Logit(cluster, q.data());
      double mass = 0;
      double spread = 0;
      for (const uint32_t position : cluster.positions) {
        double product = 0;
        for (uint32_t d = 0; d < kContextDim; ++d) {
          product += double{q[d]} * double{context.Key(position, d)};
        }
        mass += std::exp(product * double{kContextScale});
        spread = std::max(spread, std::abs(product * double{kContextScale} - logit));
      }
      const double estimate = static_cast<double>(cluster.positions.size()) * std::exp(logit);
      EXPECT_LE(estimate, mass * 1.02);  // means are rounded to bf16
      EXPECT_LE(mass, estimate * std::cosh(spread) * 1.02);
    }
  }
}

}  // namespace
}  // namespace spindle::sparse
