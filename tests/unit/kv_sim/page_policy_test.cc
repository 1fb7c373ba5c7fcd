#include "kv/sim/page_policy.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kv/sim/stack_distance.h"
#include "support/random_seed.h"
#include "unit/kv_sim/policy_oracle.h"

namespace spindle::kv::sim {
namespace {

const std::vector<std::string>& AllPolicies() {
  static const auto* const names = new std::vector<std::string>{
      "lru", "bucketed", "bucketed:8", "fifo", "random", "clock", "slru", "arc", "belady"};
  return *names;
}

PolicySpec Spec(const std::string& name) {
  const auto spec = ParsePolicy(name);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

double Ratio(const std::string& name, uint32_t capacity, const SelectionTrace& trace) {
  const auto count = Simulate(Spec(name), capacity, trace);
  EXPECT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(count->accesses, trace.num_counted_accesses());
  return count->ratio();
}

// Runs the trace through policy and oracle, page by page.
void ExpectAsOracle(const std::string& name,
                    OraclePolicy oracle,
                    uint32_t capacity,
                    const SelectionTrace& trace) {
  auto policy = MakePagePolicy(Spec(name), capacity, trace);
  ASSERT_TRUE(policy.ok()) << policy.status();
  for (uint32_t step = 0; step < trace.num_steps(); ++step) {
    const auto pages = trace.step(step);
    std::vector<uint8_t> is_hit(pages.size());
    const uint32_t hits = (*policy)->Step(pages, is_hit);
    const std::vector<uint8_t> expected = oracle.Step(pages);
    ASSERT_EQ(is_hit, expected) << name << ", capacity " << capacity << ", step " << step;
    ASSERT_EQ(hits, std::count(expected.begin(), expected.end(), 1));
  }
}

TEST(PolicyName, ReadsBackWhatItNames) {
  for (const std::string name : {"lru",
                                 "bucketed",
                                 "bucketed:16",
                                 "bucketed:64/4",
                                 "fifo",
                                 "random",
                                 "clock",
                                 "slru",
                                 "arc",
                                 "belady"}) {
    EXPECT_EQ(PolicyName(Spec(name)), name);
  }
  EXPECT_EQ(PolicyName(Spec("bucketed:64/1")), "bucketed");
  EXPECT_EQ(Spec("bucketed:16/2").lru.range, 16U);
  EXPECT_EQ(Spec("bucketed:16/2").lru.quantum_steps, 2U);
  for (const std::string name : {"",
                                 "LRU",
                                 "lru:8",
                                 "bucketed:",
                                 "bucketed:7",
                                 "bucketed:8/",
                                 "bucketed:8/0",
                                 "bucketed:8x",
                                 "mru"}) {
    EXPECT_EQ(ParsePolicy(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(PagePolicy, ExactLruIsThePlainModel) {
  const uint64_t seed = test::RandomSeed(11);
  for (const uint32_t capacity : {1U, 3U, 12U, 20U, 37U}) {
    ExpectAsOracle("lru",
                   OraclePolicy(capacity,
                                [](const OraclePolicy::Use& use) -> OraclePolicy::Key {
                                  return {use.last_step, use.page};
                                }),
                   capacity,
                   RandomTrace(60, 16, 600, seed + capacity));
  }
}

TEST(PagePolicy, FifoIsThePlainModel) {
  const uint64_t seed = test::RandomSeed(12);
  for (const uint32_t capacity : {1U, 3U, 12U, 20U, 37U}) {
    ExpectAsOracle("fifo",
                   OraclePolicy(capacity,
                                [](const OraclePolicy::Use& use) -> OraclePolicy::Key {
                                  return {static_cast<int64_t>(use.arrival), 0};
                                }),
                   capacity,
                   RandomTrace(60, 16, 600, seed + capacity));
  }
}

TEST(PagePolicy, BeladyEvictsTheFarthestNextUse) {
  const uint64_t seed = test::RandomSeed(13);
  for (const uint32_t capacity : {16U, 20U, 37U}) {
    const SelectionTrace trace = RandomTrace(60, 16, 400, seed + capacity);
    const auto key = [&trace](const OraclePolicy::Use& use) -> OraclePolicy::Key {
      // The model counts steps from 1, so its last step is the index of the next.
      for (uint32_t step = use.last_step; step < trace.num_steps(); ++step) {
        const auto pages = trace.step(step);
        if (std::binary_search(pages.begin(), pages.end(), use.page)) {
          return {-int64_t{step}, -int64_t{use.page}};
        }
      }
      return {-int64_t{1} << 40, -int64_t{use.page}};
    };
    ExpectAsOracle("belady", OraclePolicy(capacity, key), capacity, trace);
  }
}

TEST(PagePolicy, NothingBeatsBelady) {
  const uint64_t seed = test::RandomSeed(14);
  for (uint64_t round = 0; round < 8; ++round) {
    const SelectionTrace trace = RandomTrace(80, 16, 500, seed + round);
    for (const uint32_t capacity : {16U, 24U, 40U}) {
      const double best = Ratio("belady", capacity, trace);
      for (const std::string& name : AllPolicies()) {
        EXPECT_LE(Ratio(name, capacity, trace), best) << name << ", capacity " << capacity;
      }
    }
  }
}

// All pages of a step stay until the next, as far as there are frames for them.
TEST(PagePolicy, PagesOfAStepAreNoVictimsInIt) {
  const uint64_t seed = test::RandomSeed(15);
  for (const std::string& name : AllPolicies()) {
    for (const uint32_t capacity : {8U, 16U, 24U}) {
      const SelectionTrace once = RandomTrace(90, 24, 300, seed + capacity);
      SelectionTrace twice(90, 0);
      for (uint32_t step = 0; step < once.num_steps(); ++step) {
        twice.Append(once.step(step));
        twice.Append(once.step(step));
      }
      auto policy = MakePagePolicy(Spec(name), capacity, twice);
      ASSERT_TRUE(policy.ok()) << policy.status();
      for (uint32_t step = 0; step < twice.num_steps(); ++step) {
        const auto pages = twice.step(step);
        std::vector<uint8_t> is_hit(pages.size());
        const uint32_t hits = (*policy)->Step(pages, is_hit);
        if (step % 2 == 1) {
          ASSERT_EQ(hits, std::min<size_t>(capacity, pages.size())) << name << ", step " << step;
        }
      }
    }
  }
}

TEST(PagePolicy, NothingIsMissedTwiceWhenEverythingFits) {
  for (const std::string& name : AllPolicies()) {
    const SelectionTrace trace = RandomTrace(64, 16, 300, 16);
    const auto pages = trace.accesses();
    const std::set<uint32_t> distinct(pages.begin(), pages.end());
    const auto count = Simulate(Spec(name), 64, trace);
    ASSERT_TRUE(count.ok()) << count.status();
    EXPECT_EQ(count->accesses - count->hits, distinct.size()) << name;
  }
}

TEST(PagePolicy, ACyclicScanOfOnePageMoreThanFitsMissesAllUnderLru) {
  for (const std::string name : {"lru", "bucketed", "bucketed:16", "bucketed:8", "fifo"}) {
    for (const uint32_t capacity : {64U, 192U, 768U}) {
      EXPECT_EQ(Ratio(name, capacity, MakeCyclicTrace(capacity + 1, 10)), 0.0) << name;
      EXPECT_EQ(Ratio(name, capacity, MakeCyclicTrace(capacity, 10)), 1.0) << name;
      EXPECT_EQ(Ratio(name, capacity, MakeCyclicTrace(capacity - 1, 10)), 1.0) << name;
    }
  }
  EXPECT_GT(Ratio("belady", 64, MakeCyclicTrace(65, 10)), 0.95);
  EXPECT_GT(Ratio("random", 64, MakeCyclicTrace(65, 10)), 0.3);
}

TEST(PagePolicy, AScanHitsNothing) {
  for (const std::string& name : AllPolicies()) {
    EXPECT_EQ(Ratio(name, 64, MakeScanTrace(50, 16)), 0.0) << name;
  }
}

// 8 pages used twice, then a scan, then the 8 pages again: who knows frequency keeps them.
TEST(PagePolicy, SlruAndArcKeepPagesOfTwoUsesThroughAScan) {
  SelectionTrace trace(1000, 0);
  const std::vector<uint32_t> hot = {0, 1, 2, 3, 4, 5, 6, 7};
  trace.Append(hot);
  trace.Append(hot);
  for (uint32_t page = 100; page < 400; ++page) {
    trace.Append({&page, 1});
  }
  trace.Append(hot);
  const std::map<std::string, uint64_t> hits = {
      {"slru", 16}, {"arc", 16}, {"lru", 8}, {"fifo", 8}, {"bucketed", 8}};
  for (const auto& [name, expected] : hits) {
    const auto count = Simulate(Spec(name), 16, trace);
    ASSERT_TRUE(count.ok()) << count.status();
    EXPECT_EQ(count->hits, expected) << name;
  }
}

TEST(PagePolicy, ClockGivesUsedPagesASecondChance) {
  SelectionTrace trace(100, 0);
  const auto use = [&trace](uint32_t page) { trace.Append({&page, 1}); };
  for (uint32_t page = 0; page < 4; ++page) {
    use(page);
  }
  use(4);  // all were used: the hand goes round once and takes page 0
  use(1);  // a hit
  use(5);  // page 1 gets its second chance, page 2 goes
  use(1);
  use(3);
  auto policy = MakePagePolicy(Spec("clock"), 4, trace);
  ASSERT_TRUE(policy.ok());
  std::vector<uint32_t> hits;
  for (uint32_t step = 0; step < trace.num_steps(); ++step) {
    uint8_t is_hit = 0;
    hits.push_back((*policy)->Step(trace.step(step), {&is_hit, 1}));
  }
  EXPECT_EQ(hits, (std::vector<uint32_t>{0, 0, 0, 0, 0, 1, 0, 1, 1}));
}

TEST(PagePolicy, RefusesCapacitiesThatItCannotHave) {
  const SelectionTrace trace = RandomTrace(20, 4, 5, 1);
  for (const std::string& name : AllPolicies()) {
    EXPECT_EQ(MakePagePolicy(Spec(name), 0, trace).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(MakePagePolicy(Spec("bucketed"), 12, trace).status().message(),
            "capacity must be a multiple of 8 pages for bucketed, got 12");
  EXPECT_FALSE(MakePagePolicy(Spec("bucketed"), 65536, trace).ok());
}

}  // namespace
}  // namespace spindle::kv::sim
