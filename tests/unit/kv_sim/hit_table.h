// The table of docs/kv-simulator.md: hit ratios on synthetic selections, frozen. Thread-safety:
// constants and single-threaded tests.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "kv/sim/page_policy.h"
#include "kv/sim/selection_trace.h"

namespace spindle::kv::sim {

// Per cents may move by so much.
inline constexpr double kTableTolerance = 0.3;
inline constexpr uint32_t kTablePages = 32;  // selected per step
inline constexpr uint64_t kTableSeeds = 3;

inline constexpr std::array<std::string_view, 10> kTablePolicies = {"lru",
                                                                    "bucketed",
                                                                    "bucketed:16",
                                                                    "bucketed:8",
                                                                    "fifo",
                                                                    "random",
                                                                    "clock",
                                                                    "slru",
                                                                    "arc",
                                                                    "belady"};

struct TableRow {
  std::string_view profile;
  uint32_t ratio;
  std::array<double, kTablePolicies.size()> hits;  // %
};

struct TableOverlap {
  std::string_view profile;
  std::array<double, 3> overlap;  // % with the last 1, 12, 16 steps
};

inline constexpr std::array<uint32_t, 3> kTableWindows = {1, 12, 16};

inline constexpr std::array<TableOverlap, 3> kTableOverlaps = {{}};

inline constexpr std::array<TableRow, 12> kTableRows = {{}};

inline std::vector<SelectionTrace> TableTraces(std::string_view profile) {
  std::vector<SelectionTrace> traces;
  for (uint64_t seed = 0; seed < kTableSeeds; ++seed) {
    traces.push_back(MakeSyntheticTrace({.profile = FindSelectionProfile(profile).value(),
                                         .num_pages = 2048,
                                         .selected_pages = kTablePages,
                                         .seed = seed},
                                        kTableSteps,
                                        kTableWarmupSteps));
  }
  return traces;
}

// Hit ratio in % over the traces of all seeds.
inline double TableHits(std::string_view policy,
                        uint32_t ratio,
                        const std::vector<SelectionTrace>& traces) {
  HitCount count;
  for (const SelectionTrace& trace : traces) {
    const auto of_trace = Simulate(ParsePolicy(policy).value(), kTablePages * (1 + ratio), trace);
    EXPECT_TRUE(of_trace.ok()) << of_trace.status();
    count += *of_trace;
  }
  return 100.0 * count.ratio();
}

}  // namespace spindle::kv::sim
