#include "kv/sim/stack_distance.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/random_seed.h"
#include "unit/kv_sim/policy_oracle.h"

namespace spindle::kv::sim {
namespace {

TEST(MissRatioCurve, CountsDistancesByHand) {
  SelectionTrace trace(10, 0);
  trace.Append(std::vector<uint32_t>{1, 2});  // stack: 2 1
  trace.Append(std::vector<uint32_t>{3});     // 3 2 1
  trace.Append(std::vector<uint32_t>{1, 3});  // 1 at 3, 3 at 1; then 3 1 2
  trace.Append(std::vector<uint32_t>{2, 4});  // 2 at 3
  const MissRatioCurve curve = ComputeMissRatioCurve(trace);
  EXPECT_EQ(curve.min_capacity(), 2U);
  EXPECT_EQ(curve.max_useful_capacity(), 3U);
  EXPECT_EQ(curve.At(2).accesses, 7U);
  EXPECT_EQ(curve.At(2).hits, 1U);
  EXPECT_EQ(curve.At(3).hits, 3U);
  EXPECT_EQ(curve.At(1000).hits, 3U);
}

TEST(MissRatioCurve, IsExactLruAtEveryCapacity) {
  const uint64_t seed = test::RandomSeed(31);
  for (uint64_t round = 0; round < 4; ++round) {
    // Few pages and many steps, so that times run out and are packed together.
    const SelectionTrace trace = RandomTrace(70, 12, 1500, seed + round);
    const MissRatioCurve curve = ComputeMissRatioCurve(trace);
    uint64_t last = 0;
    for (uint32_t capacity = curve.min_capacity(); capacity <= 72; ++capacity) {
      const auto count = Simulate({.kind = PolicyKind::kExactLru}, capacity, trace);
      ASSERT_TRUE(count.ok());
      ASSERT_EQ(curve.At(capacity).hits, count->hits) << "capacity " << capacity;
      ASSERT_GE(count->hits, last) << "more frames, fewer hits";
      last = count->hits;
    }
  }
}

TEST(MissRatioCurve, DoesNotCountTheWarmUp) {
  SelectionTrace trace(10, 2);
  trace.Append(std::vector<uint32_t>{1});
  trace.Append(std::vector<uint32_t>{1});
  trace.Append(std::vector<uint32_t>{1});
  trace.Append(std::vector<uint32_t>{2});
  const MissRatioCurve curve = ComputeMissRatioCurve(trace);
  EXPECT_EQ(curve.At(1).accesses, 2U);
  EXPECT_EQ(curve.At(1).hits, 1U);
}

TEST(MissRatioCurve, OfNothingIsEmpty) {
  const MissRatioCurve curve = ComputeMissRatioCurve(SelectionTrace(5, 0));
  EXPECT_EQ(curve.At(7).accesses, 0U);
  EXPECT_EQ(curve.At(7).ratio(), 0.0);
}

}  // namespace
}  // namespace spindle::kv::sim
