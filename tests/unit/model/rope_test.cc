#include "model/rope.h"

#include <cmath>
#include <memory>

#include <gtest/gtest.h>

namespace spindle::model {
namespace {

RopeConfig Config(RopeScaling scaling, uint32_t dim, float base, float factor, uint32_t context) {
  RopeConfig rope;
  rope.scaling = scaling;
  rope.dim = dim;
  rope.base = base;
  rope.factor = factor;
  rope.original_context = context;
  return rope;
}

// Every eighth frequency, then the last.
void ExpectFrequencies(const RopeConfig& rope, const std::vector<double>& expected) {
  const std::vector<float> frequencies = InverseFrequencies(rope);
  ASSERT_EQ(frequencies.size(), rope.dim / 2);
  for (size_t i = 0; i + 1 < expected.size(); ++i) {
    EXPECT_NEAR(frequencies[8 * i] / expected[i], 1.0, 1e-6) << i;
  }
  EXPECT_NEAR(frequencies.back() / expected.back(), 1.0, 1e-6);
}

// The numbers were printed by transformers 5.24.
TEST(Rope, Llama3FrequenciesAreThoseOfTransformers) {
  ExpectFrequencies(Config(RopeScaling::kLlama3, 128, 500000.0F, 8.0F, 8192),
                    {1.0,
                     0.193922758,
                     0.0376060307,
                     0.00729266508,
                     0.000524846022,
                     3.42810235e-05,
                     6.64786967e-06,
                     1.28917316e-06,
                     3.06892588e-07});
}

TEST(Rope, YarnFrequenciesAndFactorAreThoseOfTransformers) {
  const RopeConfig yarn = Config(RopeScaling::kYarn, 64, 10000.0F, 4.0F, 2048);
  ExpectFrequencies(yarn, {1.0, 0.100000001, 0.00538461516, 0.000250000012, 3.33380376e-05});
  EXPECT_NEAR(AttentionFactor(yarn), 1.138629436111989, 1e-6);
}

TEST(Rope, LinearScalingDividesEveryFrequency) {
  const RopeConfig linear = Config(RopeScaling::kLinear, 64, 10000.0F, 4.0F, 0);
  ExpectFrequencies(linear, {0.25, 0.0250000004, 0.00249999994, 0.000250000012, 3.33380376e-05});
  EXPECT_EQ(AttentionFactor(linear), 1.0F);
}

TEST(Rope, FactorsOfAGgufFileDivideTheFrequencies) {
  RopeConfig rope = Config(RopeScaling::kNone, 64, 10000.0F, 1.0F, 0);
  const std::vector<float> plain = InverseFrequencies(rope);
  rope.frequency_factors.assign(32, 1.0F);
  rope.frequency_factors[5] = 8.0F;
  const std::vector<float> divided = InverseFrequencies(rope);
  EXPECT_EQ(divided[4], plain[4]);
  EXPECT_EQ(divided[5], plain[5] / 8.0F);
}

TEST(Rope, TheTableHoldsScaledCosinesOfEveryPosition) {
  auto pool = platform::ComputePool::Create({.num_threads = 2, .pin = false});
  ASSERT_TRUE(pool.ok());
  RopeConfig yarn = Config(RopeScaling::kYarn, 64, 10000.0F, 4.0F, 128);
  yarn.attention_factor = 1.5F;
  const auto table = BuildRopeTable(yarn, 600, **pool);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->attention_factor, 1.5F);
  ASSERT_EQ(table->cos.size(), 600U * 32);
  EXPECT_EQ(table->cos[0], 1.5F);
  EXPECT_EQ(table->sin[0], 0.0F);
  EXPECT_NEAR(table->cos[599 * 32], 1.5 * std::cos(599.0), 1e-6);
  EXPECT_NEAR(table->sin[599 * 32], 1.5 * std::sin(599.0), 1e-6);
}

}  // namespace
}  // namespace spindle::model
