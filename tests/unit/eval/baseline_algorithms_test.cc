// Oracle and random choice against plain definitions, and the oracle against every other choice of
// as many partitions.
#include "eval/baseline_algorithms.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "sparse/shadowkv/shadowkv_algorithm.h"
#include "support/random_seed.h"
#include "unit/sparse/naive_selection.h"
#include "unit/sparse/selection_rig.h"

namespace spindle::eval {
namespace {

constexpr uint32_t kKeyDim = 32;
constexpr float kLogitScale = 0.3F;

std::vector<float> DrawFloats(std::mt19937_64& random, size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

// Σ over query heads of the softmax over all positions, in double.
std::vector<double> MassOf(const sparse::SelectionRig& rig, const std::vector<float>& q) {
  std::vector<double> mass(rig.num_tokens(), 0);
  for (size_t head = 0; head * kKeyDim < q.size(); ++head) {
    std::vector<double> weights;
    double sum = 0;
    for (uint32_t p = 0; p < rig.num_tokens(); ++p) {
      double dot = 0;
      for (uint32_t e = 0; e < kKeyDim; ++e) {
        dot += double{q[head * kKeyDim + e]} * rig.Key(p, e);
      }
      weights.push_back(std::exp(kLogitScale * dot));
      sum += weights.back();
    }
    for (uint32_t p = 0; p < rig.num_tokens(); ++p) {
      mass[p] += weights[p] / sum;
    }
  }
  return mass;
}

class Baselines : public testing::TestWithParam<DType> {
 protected:
  Baselines() : random_(seed_) {}

  const uint64_t seed_ = test::RandomSeed(2604);
  std::mt19937_64 random_;
  const kv::KvGeometry geometry_{1, 1, kKeyDim, GetParam()};
  const sparse::SparseSettings settings_{.sink_tokens = 4, .recent_tokens = 16};
};

TEST_P(Baselines, OracleTakesThePartitionsWithTheMostMass) {
  SCOPED_TRACE(testing::Message() << "seed " << seed_);
  for (const uint32_t partition : {8U, 16U, 64U}) {
    const OracleAlgorithm oracle(geometry_, partition, nullptr);
    for (const uint32_t num_tokens : {15U, 64U, 333U, 700U}) {
      SCOPED_TRACE(testing::Message() << "partition " << partition << " tokens " << num_tokens);
      sparse::SelectionRig rig(oracle, *kernels::BestKernels(), kKeyDim, GetParam());
      rig.Append(DrawFloats(random_, size_t{num_tokens} * kKeyDim));
      const std::vector<float> q = DrawFloats(random_, 3 * kKeyDim);
      const std::vector<double> mass = MassOf(rig, q);
      const std::set<uint32_t> expected =
          sparse::NaiveChoice(settings_, num_tokens, 100, partition, [&](uint32_t id) {
            double sum = 0;
            for (uint32_t p = id * partition; p < (id + 1) * partition; ++p) {
              sum += mass[p];
            }
            return sum;
          });
      EXPECT_EQ(rig.Choose(settings_, 100, q, kLogitScale), expected);
    }
  }
}

TEST_P(Baselines, MatchedOracleAttendsToAsMuchAsTheOther) {
  SCOPED_TRACE(testing::Message() << "seed " << seed_);
  const auto inner = std::make_shared<sparse::ShadowKvAlgorithm>(6);
  const OracleAlgorithm oracle(geometry_, sparse::ShadowKvAlgorithm::kChunkTokens, inner);
  sparse::SelectionRig rig(oracle, *kernels::BestKernels(), kKeyDim, GetParam());
  sparse::SelectionRig inner_rig(*inner, *kernels::BestKernels(), kKeyDim, GetParam());
  const std::vector<float> keys = DrawFloats(random_, 640 * kKeyDim);
  rig.Append(keys);
  inner_rig.Append(keys);
  const std::vector<float> q = DrawFloats(random_, 2 * kKeyDim);
  const std::vector<double> mass = MassOf(rig, q);
  const auto covered = [&mass](const std::set<uint32_t>& positions) {
    double sum = 0;
    for (const uint32_t p : positions) {
      sum += mass[p];
    }
    return sum;
  };
  for (const uint32_t budget : {0U, 64U, 200U, 640U}) {
    const std::set<uint32_t> best = rig.Choose(settings_, budget, q, kLogitScale);
    const std::set<uint32_t> other = inner_rig.Choose(settings_, budget, q, kLogitScale);
    EXPECT_GE(best.size(), other.size());
    EXPECT_LT(best.size(), other.size() + sparse::ShadowKvAlgorithm::kChunkTokens);
    EXPECT_GE(covered(best), covered(other) - 1e-9);
  }
}

TEST_P(Baselines, RandomTakesTheBudgetAnewAtEveryPlace) {
  const RandomAlgorithm algorithm(16, 5);
  sparse::SelectionRig rig(algorithm, *kernels::BestKernels(), kKeyDim, GetParam());
  rig.Append(DrawFloats(random_, 640 * kKeyDim));
  const std::vector<float> q = DrawFloats(random_, kKeyDim);
  const std::set<uint32_t> first = rig.Choose(settings_, 160, q, kLogitScale);
  // 160 selected, 16 recent, and 4 of the sink unless its page was drawn.
  EXPECT_GE(first.size(), 160U + 16U);
  EXPECT_LE(first.size(), 160U + 16U + 4U);
  EXPECT_EQ(rig.Choose(settings_, 160, q, kLogitScale), first);
  const RandomAlgorithm reseeded(16, 6);
  sparse::SelectionRig other(reseeded, *kernels::BestKernels(), kKeyDim, GetParam());
  other.Append(DrawFloats(random_, 640 * kKeyDim));
  EXPECT_NE(other.Choose(settings_, 160, q, kLogitScale), first);
  rig.Append(DrawFloats(random_, kKeyDim));
  EXPECT_NE(rig.Choose(settings_, 160, q, kLogitScale), first);
}

INSTANTIATE_TEST_SUITE_P(Types, Baselines, testing::Values(DType::kBF16, DType::kF32));

}  // namespace
}  // namespace spindle::eval
