// The replayer: which tokens a schedule stands for at any context length.
#include "sparse/replay/replay_algorithm.h"

#include <vector>

#include <gtest/gtest.h>

namespace spindle::sparse {
namespace {

// Two steps, one layer, two heads, three of sixteen pages of 16 tokens.
PageSchedule Small() {
  return {.page_tokens = 16,
          .num_pages = 16,
          .num_steps = 2,
          .num_layers = 1,
          .num_kv_heads = 2,
          .pages_per_step = 3,
          .pages = {1, 2, 9, 0, 4, 15, 3, 5, 6, 7, 8, 10}};
}

std::vector<std::pair<uint32_t, uint64_t>> Choose(uint32_t position, uint32_t step, uint32_t head) {
  const ReplayAlgorithm algorithm(Small());
  Selection selection;
  SelectWorkspace workspace(*kernels::BestKernels());
  algorithm.Select({.position = position,
                    .decode_step = step,
                    .layer = LayerIdx(0),
                    .head = KvHeadIdx(static_cast<uint16_t>(head))},
                   workspace,
                   &selection);
  std::vector<std::pair<uint32_t, uint64_t>> chosen;
  for (const TileLive& tile : selection.tiles) {
    chosen.emplace_back(tile.tile, tile.live);
  }
  return chosen;
}

using Chosen = std::vector<std::pair<uint32_t, uint64_t>>;

TEST(ReplayAlgorithmTest, ContextOfTheSchedulesLength) {
  // 256 tokens = 16 pages: ids as they are, the first page and the row's tile on top.
  EXPECT_EQ(Choose(255, 0, 0),
            (Chosen{{0, 0xFFFFFFFFFFFF}, {2, 0xFFFF0000}, {3, 0xFFFFFFFFFFFFFFFF}}));
  EXPECT_EQ(
      Choose(255, 1, 1),
      (Chosen{{0, 0xFFFF}, {1, 0xFFFF000000000000}, {2, 0xFFFF0000FFFF}, {3, 0xFFFFFFFFFFFFFFFF}}));
  EXPECT_EQ(Choose(255, 3, 1), Choose(255, 1, 1));  // the schedule begins anew
}

TEST(ReplayAlgorithmTest, ShorterAndLongerContextsScale) {
  // One token: only itself.
  EXPECT_EQ(Choose(0, 0, 0), (Chosen{{0, 1}}));
  // 70 tokens are 5 pages: 0, 0, 2; the row's tile holds 6 tokens.
  EXPECT_EQ(Choose(69, 0, 0), (Chosen{{0, 0xFFFF0000FFFF}, {1, 0x3F}}));
  // 512 tokens are 32 pages: 2, 4, 18.
  EXPECT_EQ(
      Choose(511, 0, 0),
      (Chosen{{0, 0xFFFF0000FFFF}, {1, 0xFFFF}, {4, 0xFFFF00000000}, {7, 0xFFFFFFFFFFFFFFFF}}));
}

TEST(ReplayAlgorithmTest, EveryRowSeesItselfAndNothingLater) {
  const ReplayAlgorithm algorithm(Small());
  Selection selection;
  const std::vector<TileLive>& tiles = selection.tiles;
  SelectWorkspace workspace(*kernels::BestKernels());
  for (uint32_t position = 0; position < 2000; ++position) {
    selection.Clear();
    algorithm.Select({.position = position, .decode_step = position % 2}, workspace, &selection);
    ASSERT_GT(tiles.size(), 0U);
    for (uint32_t i = 1; i < tiles.size(); ++i) {
      ASSERT_LT(tiles[i - 1].tile, tiles[i].tile);
    }
    const TileLive& last = tiles.back();
    ASSERT_EQ(last.tile, position / 64);
    ASSERT_EQ(last.live >> (position % 64), 1U);
  }
}

}  // namespace
}  // namespace spindle::sparse
