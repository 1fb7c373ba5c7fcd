// One profile of the frozen table; the others are in hit_table_slow_test.cc.
#include "unit/kv_sim/hit_table.h"

#include <gtest/gtest.h>

namespace spindle::kv::sim {
namespace {

TEST(HitTable, StickySelectionsKeepTheirHitRatios) {
  const std::vector<SelectionTrace> traces = TableTraces("sticky");
  for (const TableRow& row : kTableRows) {
    if (row.profile != "sticky" || row.ratio != 3) {
      continue;
    }
    for (size_t policy = 0; policy < kTablePolicies.size(); ++policy) {
      EXPECT_NEAR(
          TableHits(kTablePolicies[policy], row.ratio, traces), row.hits[policy], kTableTolerance)
          << kTablePolicies[policy];
    }
  }
}

TEST(HitTable, BucketedIsWithinAPointOfExactLru) {
  for (const TableRow& row : kTableRows) {
    EXPECT_EQ(kTablePolicies[0], "lru");
    EXPECT_EQ(kTablePolicies[1], "bucketed");
    EXPECT_NEAR(row.hits[1], row.hits[0], 1.0) << row.profile << ", ratio " << row.ratio;
  }
}

}  // namespace
}  // namespace spindle::kv::sim
