// RetroInfer's estimate of attention mass and what is retrieved by it, against the definition over
// the clusters of its index.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "attention_rig.h"
#include "clustered_context.h"
#include "naive_selection.h"
#include "support/random_seed.h"

namespace spindle::sparse {
namespace {

using Cluster = ClusteredContext::Cluster;

constexpr uint32_t kMassContext = 2500;
constexpr uint32_t kMassSegments = 2;
// The steady zone is weighed by attention over bf16 rows, which rounds queries to bf16.
constexpr double kNear = 1e-3;
#if defined(SPINDLE_SANITIZED)
constexpr uint32_t kClusterRounds = 20;
#else
constexpr uint32_t kClusterRounds = 300;
#endif

// In double precision, per query head.
class ClusterMass {
 public:
  ClusterMass(const ClusteredContext& context,
              const std::vector<Cluster>& clusters,
              const std::vector<float>& q)
      : clusters_(clusters), steady_(q.size() / kContextDim), weights_(steady_.size()) {
    std::vector<double> scores(clusters.size());
    for (size_t head = 0; head < steady_.size(); ++head) {
      const float* const query = &q[head * kContextDim];
      for (uint32_t t = 0; t < kMassContext; ++t) {
        if (t < 16 || t >= kMassSegments * 1024) {
          double product = 0;
          for (uint32_t d = 0; d < kContextDim; ++d) {
            product += double{query[d]} * double{context.Key(t, d)};
          }
          steady_[head] += std::exp(product * double{kContextScale});
        }
      }
      double sum = 0;
      for (const Cluster& cluster : clusters) {
        sum += std::exp(Logit(cluster, query));
      }
      for (size_t i = 0; i < clusters.size(); ++i) {
        const double power = std::exp(Logit(clusters[i], query));
        scores[i] += power / sum;
        weights_[head].push_back(power * static_cast<double>(clusters[i].positions.size()));
      }
    }
    order_.resize(clusters.size());
    std::iota(order_.begin(), order_.end(), 0U);
    std::stable_sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      return scores[a] > scores[b];
    });
    for (size_t rank = 1; rank < order_.size(); ++rank) {
      nearest_ = std::min(nearest_, 1 - scores[order_[rank]] / scores[order_[rank - 1]]);
    }
  }

  // With the best `count` clusters retrieved: the least over the query heads.
  [[nodiscard]] double Covered(size_t count) const {
    double least = 1;
    for (size_t head = 0; head < steady_.size(); ++head) {
      double covered = steady_[head];
      for (size_t rank = 0; rank < count; ++rank) {
        covered += weights_[head][order_[rank]];
      }
      const double whole =
          std::accumulate(weights_[head].begin(), weights_[head].end(), steady_[head]);
      least = std::min(least, covered / whole);
    }
    return least;
  }

  [[nodiscard]] std::set<uint32_t> Positions(size_t count) const {
    std::set<uint32_t> positions;
    for (size_t rank = 0; rank < count; ++rank) {
      const std::vector<uint32_t>& members = clusters_[order_[rank]].positions;
      positions.insert(members.begin(), members.end());
    }
    return positions;
  }

  // Relative distance of the two scores that are nearest to each other.
  [[nodiscard]] double nearest() const { return nearest_; }

 private:
  const std::vector<Cluster>& clusters_;
  std::vector<double> steady_;
  std::vector<std::vector<double>> weights_;
  std::vector<uint32_t> order_;  // best first
  double nearest_ = 1;
};

TEST(RetroInferMassTest, ABudgetHasAnEstimateThatChangesNothing) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(51)));
  ClusteredContext context(kMassContext, rng);
  const std::vector<Cluster> clusters = context.Clusters(kMassSegments);
  for (uint32_t round = 0; round < kClusterRounds; ++round) {
    const std::vector<float> q = RandomGroupQuery(1 + round % 4, rng);
    SparseSettings settings{.min_context = 0};
    const uint32_t budget = static_cast<uint32_t>(rng() % kMassContext);
    const Selection plain = context.Choose(settings, budget, q);
    EXPECT_TRUE(std::isnan(plain.mass));
    settings.estimates_mass = true;
    const Selection estimated = context.Choose(settings, budget, q);
    ASSERT_EQ(Retrieved(estimated), Retrieved(plain));
    ASSERT_EQ(estimated.estimate, plain.estimate);
    ASSERT_EQ(estimated.estimated_tokens, plain.estimated_tokens);
    const bool is_dense = PositionsOf(plain.tiles).size() == kMassContext;
    const ClusterMass mass(context, clusters, q);
    ASSERT_NEAR(estimated.mass, is_dense ? 1 : mass.Covered(plain.clusters.size()), kNear) << round;
  }
}

TEST(RetroInferMassTest, TopPRetrievesTheFewestThatCoverIt) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(52)));
  ClusteredContext context(kMassContext, rng, IndexType::kInt8);
  const std::vector<Cluster> clusters = context.Clusters(kMassSegments);
  uint32_t num_compared = 0;
  uint32_t num_capped = 0;
  for (uint32_t round = 0; round < kClusterRounds; ++round) {
    const std::vector<float> q = RandomGroupQuery(1 + round % 4, rng);
    const ClusterMass mass(context, clusters, q);
    const double share = 0.3 + 0.69 * static_cast<double>(rng() % 1000) / 1000;
    const uint32_t budget = round % 3 == 0 ? static_cast<uint32_t>(rng() % 600) : kMassContext;
    SparseSettings settings{.min_context = 0};
    settings.top_p_mass = share;
    const Selection chosen = context.Choose(settings, budget, q);
    size_t count = 0;
    while (mass.Covered(count) < share && mass.Positions(count + 1).size() <= budget) {
      ++count;
    }
    const bool is_capped = mass.Covered(count) < share;
    // At a border of the share or between equals either is right.
    if (mass.nearest() < 1e-5 || std::abs(mass.Covered(count) - share) < kNear ||
        (count > 0 && std::abs(mass.Covered(count - 1) - share) < kNear)) {
      continue;
    }
    ++num_compared;
    num_capped += is_capped ? 1U : 0U;
    ASSERT_EQ(Retrieved(chosen), mass.Positions(count)) << round;
    ASSERT_NEAR(chosen.mass, mass.Covered(count), kNear);
    ASSERT_EQ(chosen.estimated_tokens > 0, count < clusters.size()) << "the next ones in rank";
  }
  EXPECT_GT(num_compared, kClusterRounds / 2);
  EXPECT_GT(num_capped, 0U);
}

// In the runtime, over both ways to attend: with the guard always or never reached, and top-p.
TEST(RetroInferMassTest, TheGuardAndTopPHoldInTheRuntime) {
  constexpr uint32_t kPrompt = 1100;
  constexpr uint32_t kSteps = 4;
  for (const bool mirror : {false, true}) {
    AttentionRig rig({.table = kernels::BestKernels()->name.data(),
                      .num_layers = 2,
                      .num_q_heads = 4,
                      .num_kv_heads = 2,
                      .num_threads = 2,
                      .num_stripes = 120,
                      .mirror = mirror,
                      .frames_per_group = mirror ? 32U : 0U});
    const auto decode = [&](const SparsePolicy* policy, DecodeUse* use) {
      const SequenceId sequence = rig.Open();
      const RigRows prompt{sequence, 1, 0, kPrompt, policy, kPrompt};
      rig.Step({&prompt, 1});
      std::vector<float> results;
      for (uint32_t position = kPrompt; position < kPrompt + kSteps; ++position) {
        const RigRows row{sequence, 1, position, 1, policy, kPrompt, nullptr, use};
        const std::vector<float> part = rig.Step({&row, 1});
        results.insert(results.end(), part.begin(), part.end());
      }
      rig.store().Close(sequence);
      return results;
    };
    const auto retroinfer = std::make_shared<const RetroInferAlgorithm>();
    SparseSettings settings{.budget_tokens = 200, .min_context = 0};
    const auto run = [&](const SparseSettings& with, DecodeUse* use) {
      const SparsePolicy policy(retroinfer, with);
      return decode(&policy, use);
    };
    DecodeUse unused;
    const std::vector<float> dense = decode(nullptr, &unused);
    const std::vector<float> plain = run(settings, &unused);
    EXPECT_NE(plain, dense);

    settings.min_mass = 1e-6;
    DecodeUse easy;
    EXPECT_EQ(run(settings, &easy), plain);
    EXPECT_EQ(easy.fallback_rows, 0U);
    EXPECT_EQ(easy.mass_rows, kSteps);
    EXPECT_LT(easy.mass_sum / kSteps, 0.95);

    settings.min_mass = 1;
    DecodeUse hard;
    EXPECT_EQ(run(settings, &hard), dense);
    EXPECT_EQ(hard.fallback_rows, kSteps);

    settings = {.budget_fraction = 1, .min_context = 0};
    double last_share = 0;
    for (const double mass : {0.3, 0.6, 0.9}) {
      settings.top_p_mass = mass;
      DecodeUse use;
      run(settings, &use);
      EXPECT_GE(use.mass_min, mass - 1e-5);
      EXPECT_GT(use.share_sum / kSteps, last_share);
      last_share = use.share_sum / kSteps;
    }
    EXPECT_LT(last_share, 1);
  }
}

}  // namespace
}  // namespace spindle::sparse
