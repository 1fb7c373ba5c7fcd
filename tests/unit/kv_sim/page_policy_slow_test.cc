// What the fast tier must keep of exact LRU, on long random traces.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kv/sim/page_policy.h"
#include "kv/sim/stack_distance.h"
#include "support/random_seed.h"
#include "unit/kv_sim/policy_oracle.h"

namespace spindle::kv::sim {
namespace {

TEST(PagePolicySlow, InclusionHoldsAtEveryCapacity) {
  const uint64_t seed = test::RandomSeed(21);
  for (uint64_t round = 0; round < 10; ++round) {
    const SelectionTrace trace = RandomTrace(300, 24, 3000, seed + round);
    const MissRatioCurve curve = ComputeMissRatioCurve(trace);
    uint64_t last = 0;
    for (uint32_t capacity = curve.min_capacity(); capacity <= 304; ++capacity) {
      const auto count = Simulate({.kind = PolicyKind::kExactLru}, capacity, trace);
      ASSERT_TRUE(count.ok());
      ASSERT_EQ(curve.At(capacity).hits, count->hits) << "capacity " << capacity;
      ASSERT_GE(count->hits, last);
      last = count->hits;
    }
  }
}

TEST(PagePolicySlow, BucketedIsWithinAPointOfExactLru) {
  const uint64_t seed = test::RandomSeed(22);
  for (const SelectionProfile& profile : {kStickyProfile, kMediumProfile, kLooseProfile}) {
    for (uint64_t i = 0; i < 4; ++i) {
      const SelectionTrace trace =
          MakeSyntheticTrace({.profile = profile, .seed = seed + i}, 1000, kTableWarmupSteps);
      for (const uint32_t ratio : {1U, 2U, 3U, 5U, 8U}) {
        const auto exact = Simulate({.kind = PolicyKind::kExactLru}, 32 * (1 + ratio), trace);
        const auto bucketed = Simulate({.kind = PolicyKind::kBucketed}, 32 * (1 + ratio), trace);
        ASSERT_TRUE(exact.ok() && bucketed.ok());
        EXPECT_NEAR(bucketed->ratio(), exact->ratio(), 0.01) << "ratio " << ratio;
      }
    }
  }
}

}  // namespace
}  // namespace spindle::kv::sim
