// Hit ratios of the prefix cache on Mooncake's published request traces, which are not part of this
// repository: SPINDLE_TEST_TRACES names the folder that holds conversation_trace.jsonl and
// synthetic_trace.jsonl (kvcache-ai/Mooncake, FAST25-release/traces).
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/read_file.h"
#include "kv/sim/prefix_sim.h"

namespace spindle::kv::sim {
namespace {

struct Row {
  uint32_t capacity;
  double fifo;
  double bucketed;
  double lru;
  double belady;
};

struct Table {
  const char* file;
  size_t requests;
  size_t units;
  uint32_t distinct;
  double ceiling;
  std::vector<Row> rows;
};

void PrintTo(const Table& table, std::ostream* out) {
  *out << table.file;
}

class MooncakeTraces : public testing::TestWithParam<Table> {};

TEST_P(MooncakeTraces, GiveThePublishedHitRatios) {
  const Table& table = GetParam();
  const char* const folder = std::getenv("SPINDLE_TEST_TRACES");
  if (folder == nullptr) {
    GTEST_SKIP() << "SPINDLE_TEST_TRACES is not set: the request traces were not checked";
  }
  const auto trace =
      ParseRequestTrace(ReadFile(std::string(folder) + "/" + table.file, kMaxTraceBytes).value());
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->requests.size(), table.requests);
  EXPECT_EQ(trace->units.size(), table.units);
  EXPECT_EQ(trace->num_units, table.distinct);
  EXPECT_NEAR(100.0 * PrefixHitCeiling(*trace), table.ceiling, 0.3);
  for (const Row& row : table.rows) {
    const auto percent = [&](PrefixPolicy policy) {
      const auto count = SimulatePrefixCache(policy, row.capacity, *trace);
      EXPECT_TRUE(count.ok()) << count.status();
      return 100.0 * count->ratio();
    };
    EXPECT_NEAR(percent(PrefixPolicy::kFifo), row.fifo, 0.3) << row.capacity;
    EXPECT_NEAR(percent(PrefixPolicy::kBucketed), row.bucketed, 0.3) << row.capacity;
    EXPECT_NEAR(percent(PrefixPolicy::kExactLru), row.lru, 0.3) << row.capacity;
    EXPECT_NEAR(percent(PrefixPolicy::kBelady), row.belady, 0.3) << row.capacity;
  }
}

INSTANTIATE_TEST_SUITE_P(FastRelease,
                         MooncakeTraces,
                         testing::Values(Table{"conversation_trace.jsonl",
                                               12031,
                                               288500,
                                               182790,
                                               36.6,
                                               {{2000, 5.2, 5.4, 5.4, 25.5},
                                                {8000, 15.8, 17.8, 17.8, 36.6},
                                                {32000, 29.9, 33.1, 33.2, 36.6}}},
                                         Table{"synthetic_trace.jsonl",
                                               3993,
                                               121877,
                                               43924,
                                               64.0,
                                               {{2000, 14.3, 14.6, 14.6, 38.0},
                                                {8000, 34.5, 37.2, 37.3, 59.5},
                                                {32000, 60.0, 62.6, 62.8, 64.0}}}));

}  // namespace
}  // namespace spindle::kv::sim
