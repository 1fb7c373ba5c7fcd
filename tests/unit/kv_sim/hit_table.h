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

inline constexpr std::array<TableOverlap, 3> kTableOverlaps = {{{"sticky", {84.98, 96.61, 97.07}},
                                                                {"medium", {69.97, 91.39, 92.38}},
                                                                {"loose", {37.24, 73.97, 76.34}}}};

inline constexpr std::array<TableRow, 12> kTableRows = {
    {{"sticky", 0, {84.98, 84.98, 84.98, 84.98, 84.98, 84.98, 84.98, 84.98, 84.98, 84.98}},
     {"sticky", 1, {97.55, 97.57, 97.47, 97.41, 96.16, 96.52, 97.48, 97.53, 97.49, 98.62}},
     {"sticky", 3, {99.15, 99.08, 98.98, 98.91, 98.63, 98.88, 99.04, 99.17, 99.18, 99.31}},
     {"sticky", 5, {99.31, 99.31, 99.31, 99.31, 99.31, 99.31, 99.31, 99.31, 99.31, 99.31}},
     {"medium", 0, {69.97, 69.97, 69.97, 69.97, 69.97, 69.97, 69.97, 69.97, 69.97, 69.97}},
     {"medium", 1, {89.02, 89.02, 89.00, 88.90, 85.07, 85.82, 88.83, 88.26, 88.54, 93.30}},
     {"medium", 3, {94.41, 94.38, 94.08, 93.81, 92.08, 92.69, 94.21, 94.48, 94.22, 96.95}},
     {"medium", 5, {96.17, 96.14, 95.65, 95.53, 94.49, 94.87, 96.00, 96.38, 96.25, 97.87}},
     {"loose", 0, {37.24, 37.24, 37.24, 37.24, 37.24, 37.24, 37.24, 37.24, 37.24, 37.24}},
     {"loose", 1, {55.44, 55.38, 55.38, 55.38, 50.57, 51.69, 54.85, 56.40, 57.13, 70.83}},
     {"loose", 3, {70.34, 70.36, 70.36, 70.06, 64.82, 64.94, 69.74, 69.16, 70.15, 81.97}},
     {"loose", 5, {76.24, 76.21, 76.13, 75.37, 71.59, 71.12, 75.71, 75.96, 75.64, 86.06}}}};

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
