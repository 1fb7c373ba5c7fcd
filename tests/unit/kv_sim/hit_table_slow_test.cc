// The whole frozen table.
#include <gtest/gtest.h>

#include "unit/kv_sim/hit_table.h"

namespace spindle::kv::sim {
namespace {

TEST(HitTableSlow, KeepsEveryFigure) {
  for (const TableOverlap& expected : kTableOverlaps) {
    const std::vector<SelectionTrace> traces = TableTraces(expected.profile);
    for (size_t window = 0; window < kTableWindows.size(); ++window) {
      double sum = 0;
      for (const SelectionTrace& trace : traces) {
        sum += 100.0 * OverlapWithWindow(trace, kTableWindows[window]);
      }
      EXPECT_NEAR(sum / kTableSeeds, expected.overlap[window], kTableTolerance)
          << expected.profile << ", window " << kTableWindows[window];
    }
    for (const TableRow& row : kTableRows) {
      if (row.profile != expected.profile) {
        continue;
      }
      for (size_t policy = 0; policy < kTablePolicies.size(); ++policy) {
        EXPECT_NEAR(
            TableHits(kTablePolicies[policy], row.ratio, traces), row.hits[policy], kTableTolerance)
            << row.profile << ", ratio " << row.ratio << ", " << kTablePolicies[policy];
      }
    }
  }
}

}  // namespace
}  // namespace spindle::kv::sim
