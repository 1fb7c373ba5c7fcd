#include "kv/sim/prefix_sim.h"

#include <algorithm>
#include <cstdint>
#include <list>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::kv::sim {
namespace {

constexpr PrefixPolicy kAll[] = {PrefixPolicy::kFifo,
                                 PrefixPolicy::kBucketed,
                                 PrefixPolicy::kExactLru,
                                 PrefixPolicy::kServer,
                                 PrefixPolicy::kBelady};

RequestTrace MakeTrace(const std::vector<std::vector<uint32_t>>& prompts) {
  RequestTrace trace;
  for (const std::vector<uint32_t>& prompt : prompts) {
    TraceRequest request;
    request.first_unit = trace.units.size();
    request.num_units = static_cast<uint32_t>(prompt.size());
    trace.units.insert(trace.units.end(), prompt.begin(), prompt.end());
    trace.requests.push_back(request);
    for (const uint32_t unit : prompt) {
      trace.num_units = std::max(trace.num_units, unit + 1);
    }
  }
  return trace;
}

// Prompts that continue earlier ones, fork from them or are new.
RequestTrace RandomPrompts(uint64_t seed, uint32_t count) {
  std::mt19937_64 rng(seed);
  std::vector<std::vector<uint32_t>> prompts;
  uint32_t next_unit = 0;
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<uint32_t> prompt;
    if (!prompts.empty() && rng() % 3 != 0) {
      prompt = prompts[prompts.size() - 1 - rng() % std::min<size_t>(prompts.size(), 40)];
      prompt.resize(1 + rng() % prompt.size());
    }
    for (uint64_t more = 1 + rng() % 4; more > 0 && prompt.size() < 30; --more) {
      prompt.push_back(next_unit++);
    }
    prompts.push_back(prompt);
  }
  return MakeTrace(prompts);
}

uint64_t Hits(PrefixPolicy policy, uint32_t capacity, const RequestTrace& trace) {
  const auto count = SimulatePrefixCache(policy, capacity, trace);
  EXPECT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(count->accesses, trace.units.size());
  return count->hits;
}

// The plainest LRU: a list, newest last.
uint64_t PlainLruHits(uint32_t capacity, const RequestTrace& trace) {
  std::list<uint32_t> pool;
  uint64_t hits = 0;
  for (const TraceRequest& request : trace.requests) {
    const auto units = trace.UnitsOf(request);
    size_t prefix = 0;
    while (prefix < units.size() &&
           std::find(pool.begin(), pool.end(), units[prefix]) != pool.end()) {
      ++prefix;
    }
    hits += prefix;
    for (size_t i = units.size(); i-- > 0;) {
      pool.remove(units[i]);
      pool.push_back(units[i]);
      if (pool.size() > capacity) {
        pool.pop_front();
      }
    }
  }
  return hits;
}

TEST(ParsePrefixPolicy, KnowsEachByItsName) {
  EXPECT_EQ(ParsePrefixPolicy("fifo").value(), PrefixPolicy::kFifo);
  EXPECT_EQ(ParsePrefixPolicy("bucketed").value(), PrefixPolicy::kBucketed);
  EXPECT_EQ(ParsePrefixPolicy("lru").value(), PrefixPolicy::kExactLru);
  EXPECT_EQ(ParsePrefixPolicy("server").value(), PrefixPolicy::kServer);
  EXPECT_EQ(ParsePrefixPolicy("belady").value(), PrefixPolicy::kBelady);
  EXPECT_FALSE(ParsePrefixPolicy("arc").ok());
}

TEST(PrefixSim, OnlyTheRunFromTheStartIsAHit) {
  // The third prompt has 2 in the middle of nothing: no prefix.
  const RequestTrace trace = MakeTrace({{0, 1, 2}, {0, 1, 3}, {4, 2}, {0, 5, 3}});
  for (const PrefixPolicy policy : kAll) {
    EXPECT_EQ(Hits(policy, 100, trace), 3U) << static_cast<int>(policy);
  }
  EXPECT_DOUBLE_EQ(PrefixHitCeiling(trace), 3.0 / 11);
}

TEST(PrefixSim, LruIsThePlainModel) {
  const uint64_t seed = test::RandomSeed(41);
  for (const uint32_t capacity : {30U, 50U, 200U}) {
    const RequestTrace trace = RandomPrompts(seed + capacity, 600);
    EXPECT_EQ(Hits(PrefixPolicy::kExactLru, capacity, trace), PlainLruHits(capacity, trace));
  }
}

TEST(PrefixSim, TailsGoBeforeHeads) {
  // Room for 4: of prompt 0 1 2, unit 2 must go first when 5 6 come.
  const RequestTrace trace = MakeTrace({{0, 1, 2}, {5, 6}, {0, 1, 2}});
  for (const PrefixPolicy policy :
       {PrefixPolicy::kExactLru, PrefixPolicy::kBucketed, PrefixPolicy::kServer}) {
    EXPECT_EQ(Hits(policy, 4, trace), 2U) << static_cast<int>(policy);
  }
  // FIFO gives up the head, and with it the prefix.
  EXPECT_EQ(Hits(PrefixPolicy::kFifo, 4, trace), 0U);
}

TEST(PrefixSim, TheServersOrderProtectsWhatWasHitTwice) {
  std::vector<std::vector<uint32_t>> prompts = {{0, 1}, {0, 1}, {0, 1}};
  for (uint32_t unit = 2; unit < 100; ++unit) {
    prompts.push_back({unit});
  }
  prompts.push_back({0, 1});
  const RequestTrace trace = MakeTrace(prompts);
  EXPECT_EQ(Hits(PrefixPolicy::kServer, 10, trace), 6U);
  EXPECT_EQ(Hits(PrefixPolicy::kExactLru, 10, trace), 4U);
}

TEST(PrefixSim, EveryPoolReachesTheCeilingWhenAllFits) {
  const RequestTrace trace = RandomPrompts(test::RandomSeed(42), 400);
  for (const PrefixPolicy policy : kAll) {
    EXPECT_DOUBLE_EQ(static_cast<double>(Hits(policy, trace.num_units, trace)) /
                         static_cast<double>(trace.units.size()),
                     PrefixHitCeiling(trace));
  }
}

TEST(PrefixSim, BucketedIsCloseToLruAndBeladyAboveBoth) {
  const uint64_t seed = test::RandomSeed(43);
  for (const uint32_t capacity : {60U, 200U, 600U}) {
    const RequestTrace trace = RandomPrompts(seed + capacity, 3000);
    const auto total = static_cast<double>(trace.units.size());
    const auto lru = static_cast<double>(Hits(PrefixPolicy::kExactLru, capacity, trace));
    const auto bucketed = static_cast<double>(Hits(PrefixPolicy::kBucketed, capacity, trace));
    const auto belady = static_cast<double>(Hits(PrefixPolicy::kBelady, capacity, trace));
    EXPECT_NEAR(bucketed / total, lru / total, 0.02) << capacity;
    EXPECT_GE(belady, lru);
  }
}

TEST(PrefixSim, RefusesPoolsBelowTheLongestPrompt) {
  const RequestTrace trace = MakeTrace({{0, 1, 2}});
  const auto count = SimulatePrefixCache(PrefixPolicy::kFifo, 2, trace);
  EXPECT_EQ(count.status().message(),
            "capacity must be in 3 (the longest prompt)..268435456 units, got 2");
}

}  // namespace
}  // namespace spindle::kv::sim
