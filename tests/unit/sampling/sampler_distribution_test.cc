#include <map>

#include <gtest/gtest.h>

#include "sampling/sampler.h"
#include "unit/sampling/sampler_support.h"

namespace spindle::sampling {
namespace {

// Chi-square of the drawn frequencies against the reference distribution.
void ExpectDistribution(const SamplingParams& params, std::span<const float> logits) {
  constexpr int kDraws = 20000;
  const auto vocab = static_cast<uint32_t>(logits.size());
  Sampler sampler(testing::NaiveLogitKernels(), vocab, 0);
  const SamplerState state(params, EndTokens(), 0, {}, vocab);
  std::map<TokenId, int> drawn;
  for (int position = 0; position < kDraws; ++position) {
    const auto scored = sampler.Sample(state, static_cast<uint64_t>(position), logits);
    ASSERT_TRUE(scored.ok());
    ++drawn[scored->token];
  }
  const std::vector<Weighted> kept = NaiveKept(params, {}, logits);
  double total = 0.0;
  for (const Weighted& each : kept) {
    total += each.weight;
  }
  double chi_square = 0.0;
  int cells = 0;
  double rare_expected = 0.0;
  int rare_drawn = 0;
  int num_drawn = 0;
  for (const Weighted& each : kept) {
    const double expected = each.weight / total * kDraws;
    const int count = drawn[each.token];
    num_drawn += count;
    if (expected < 8.0) {  // cells too small for the statistic are pooled
      rare_expected += expected;
      rare_drawn += count;
      continue;
    }
    chi_square += (count - expected) * (count - expected) / expected;
    ++cells;
  }
  if (rare_expected >= 8.0) {
    chi_square += (rare_drawn - rare_expected) * (rare_drawn - rare_expected) / rare_expected;
    ++cells;
  }
  EXPECT_EQ(num_drawn, kDraws) << "a token outside the kept set was drawn";
  // Mean k - 1, variance 2 (k - 1): five standard deviations.
  const double degrees = cells - 1;
  EXPECT_LT(chi_square, degrees + 5.0 * std::sqrt(2.0 * degrees)) << "cells " << cells;
}

std::vector<float> Ramp(size_t size, float step) {
  std::vector<float> logits(size);
  for (size_t i = 0; i < size; ++i) {
    logits[(i * 37) % size] = -step * static_cast<float>(i);
  }
  return logits;
}

TEST(SamplerDistribution, PlainTemperature) {
  SamplingParams params;
  params.seed = 3;
  ExpectDistribution(params, Ramp(200, 0.05F));
  params.temperature = 1.7F;
  ExpectDistribution(params, Ramp(200, 0.05F));
}

TEST(SamplerDistribution, TopKTopPMinP) {
  SamplingParams params;
  params.seed = 4;
  params.top_k = 30;
  ExpectDistribution(params, Ramp(200, 0.05F));
  params.top_k = 0;
  params.top_p = 0.8F;
  ExpectDistribution(params, Ramp(200, 0.05F));
  params.top_p = 1.0F;
  params.min_p = 0.2F;
  ExpectDistribution(params, Ramp(200, 0.05F));
  params.top_p = 0.7F;
  params.top_k = 25;
  ExpectDistribution(params, Ramp(200, 0.05F));
}

TEST(SamplerDistribution, ChoicesAreIndependent) {
  SamplingParams params;
  params.seed = 5;
  const std::vector<float> logits(64, 0.0F);
  Sampler sampler(testing::NaiveLogitKernels(), 64, 0);
  int equal = 0;
  constexpr int kDraws = 6400;
  for (uint64_t position = 0; position < kDraws; ++position) {
    const SamplerState first(params, EndTokens(), 0, {}, 64);
    const SamplerState second(params, EndTokens(), 1, {}, 64);
    equal += sampler.Sample(first, position, logits)->token ==
                     sampler.Sample(second, position, logits)->token
                 ? 1
                 : 0;
  }
  // Expected 100 agreements, standard deviation 10.
  EXPECT_NEAR(equal, 100, 50);
}

}  // namespace
}  // namespace spindle::sampling
