#include "sparse/run_builder.h"

#include <array>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/prefix_key.h"
#include "sparse/algorithm_registry.h"
#include "support/random_seed.h"

namespace spindle::sparse {
namespace {

TEST(AlgorithmRegistryTest, FindsByNameOnly) {
  for (const char* name : {"dense", "streaming", "quest", "shadowkv", "retroinfer"}) {
    ASSERT_NE(FindAlgorithm(name), nullptr);
    EXPECT_EQ(FindAlgorithm(name)->name(), name);
  }
  EXPECT_EQ(FindAlgorithm("Dense"), nullptr);
  EXPECT_EQ(FindAlgorithm(""), nullptr);
}

TEST(DenseAlgorithmTest, SelectsEveryPositionAndNoOther) {
  struct Row {
    uint32_t num_tokens;
    uint32_t num_tiles;
    uint64_t last_live;
  };

  const std::vector<Row> rows = {
      {1, 1, 0x1},
      {63, 1, 0x7fffffffffffffff},
      {64, 1, 0xffffffffffffffff},
      {65, 2, 0x1},
      {130, 3, 0x3},
      {1025, 17, 0x1},
  };
  SelectWorkspace workspace(*kernels::BestKernels());
  for (const Row& row : rows) {
    Selection selection;
    FindAlgorithm("dense")->Select({.position = row.num_tokens - 1}, workspace, &selection);
    const std::vector<TileLive>& tiles = selection.tiles;
    ASSERT_EQ(tiles.size(), row.num_tiles) << row.num_tokens;
    for (uint32_t i = 0; i < tiles.size(); ++i) {
      EXPECT_EQ(tiles[i].tile, i);
      EXPECT_EQ(tiles[i].live, i + 1 < tiles.size() ? ~uint64_t{0} : row.last_live);
    }
  }
}

// The token rows that runs reach through their live lanes, as (tile, lane) with their addresses.
struct ReachedRow {
  uint32_t position;
  const void* k;
  const void* v;

  bool operator==(const ReachedRow&) const = default;
};

std::vector<ReachedRow> Reached(const kv::KvGeometry& geometry,
                                const std::vector<kernels::KvRun>& runs) {
  std::vector<ReachedRow> rows;
  const size_t element = Describe(geometry.type).block_bytes;
  for (const kernels::KvRun& run : runs) {
    for (uint32_t i = 0; i < run.count; ++i) {
      const uint32_t lane = run.first_lane + i;
      if ((run.live >> lane & 1) != 0) {
        const size_t offset = size_t{i} * run.row_stride * element;
        rows.push_back({run.tile * 64 + lane,
                        static_cast<const uint8_t*>(run.k) + offset,
                        static_cast<const uint8_t*>(run.v) + offset});
      }
    }
  }
  return rows;
}

TEST(RunBuilderTest, RandomMasksReachExactlyTheirLiveRows) {
  std::mt19937_64 random(test::RandomSeed(20263));
  const std::vector<kv::KvGeometry> geometries = {
      {2, 3, 64, DType::kBF16},
      {2, 2, 128, DType::kBF16},
      {1, 1, 16, DType::kBF16},
      {2, 5, 80, DType::kF32},
      {1, 14, 64, DType::kF32},
  };
  for (int round = 0; round < 500; ++round) {
    const kv::KvGeometry& geometry = geometries[random() % geometries.size()];
    std::vector<uint8_t> memory(6 * geometry.stripe_bytes());
    std::vector<uint8_t*> stripes;
    for (const size_t i : {3U, 0U, 5U, 1U, 4U, 2U}) {
      stripes.push_back(memory.data() + i * geometry.stripe_bytes());
    }
    std::vector<TileLive> tiles;
    std::vector<ReachedRow> expected;
    for (uint32_t tile = 0; tile < stripes.size(); ++tile) {
      // Sparse, half full or full.
      uint64_t live = random() | (random() % 2 == 0 ? 0 : ~uint64_t{0});
      live &= random() % 2 == 0 ? (random() & random() & random()) : ~uint64_t{0};
      if (live == 0) {
        continue;
      }
      tiles.push_back({tile, live});
      for (uint32_t lane = 0; lane < kStripeTokens; ++lane) {
        if ((live >> lane & 1) != 0) {
          const uint8_t* k = stripes[tile] + geometry.row_offset(0, lane);
          expected.push_back({tile * 64 + lane, k, k + geometry.v_offset()});
        }
      }
    }
    std::vector<kernels::KvRun> runs;
    AppendRuns(geometry, stripes, tiles, &runs);
    EXPECT_EQ(Reached(geometry, runs), expected);
    for (size_t i = 0; i < runs.size(); ++i) {
      const bool last = i + 1 == runs.size() || runs[i + 1].tile != runs[i].tile;
      EXPECT_EQ(runs[i].last_of_tile, last ? 1 : 0);
      EXPECT_GE(runs[i].count, 1);
      EXPECT_NE(runs[i].live >> runs[i].first_lane & 1, 0U);
      EXPECT_NE(runs[i].live >> (runs[i].first_lane + runs[i].count - 1) & 1, 0U);
      EXPECT_LE(runs[i].first_lane + runs[i].count, 64);
    }
  }
}

}  // namespace
}  // namespace spindle::sparse
