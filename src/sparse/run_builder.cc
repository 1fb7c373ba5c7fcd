#include "sparse/run_builder.h"

#include <bit>

#include "base/status_macros.h"

namespace spindle::sparse {

static_assert(kernels::kTileTokens == kStripeTokens, "a tile is one stripe");

void AppendPages(const kv::KvGeometry& geometry,
                 std::span<const TileLive> tiles,
                 std::vector<uint32_t>* pages) {
  const uint32_t page_tokens = geometry.page_tokens();
  const uint32_t pages_per_tile = kernels::kTileTokens / page_tokens;
  for (const TileLive& tile : tiles) {
    for (uint32_t lane = 0; lane < kStripeTokens; lane += page_tokens) {
      if (LiveInPage(geometry, tile, lane) != 0) {
        pages->push_back(tile.tile * pages_per_tile + lane / page_tokens);
      }
    }
  }
}

kernels::KvRun PageRun(const kv::KvGeometry& geometry,
                       const TileLive& tile,
                       uint32_t lane,
                       const uint8_t* page) {
  const uint64_t live = LiveInPage(geometry, tile, lane);
  const auto skipped = static_cast<uint32_t>(std::countr_zero(live));
  const uint8_t* const first = page + skipped * geometry.row_bytes();
  const uint32_t end = lane + geometry.page_tokens();
  return {.k = first,
          .v = first + geometry.v_offset(),
          .live = tile.live,
          .row_stride = geometry.head_dim,
          .tile = tile.tile,
          .count = static_cast<uint16_t>(static_cast<uint32_t>(std::bit_width(live)) - skipped),
          .first_lane = static_cast<uint8_t>(lane + skipped),
          .last_of_tile = static_cast<uint8_t>(end == kStripeTokens || tile.live >> end == 0)};
}

void AppendRuns(const kv::KvGeometry& geometry,
                std::span<uint8_t* const> stripes,
                std::span<const TileLive> tiles,
                std::vector<kernels::KvRun>* runs) {
  const uint32_t page_tokens = geometry.page_tokens();
  const size_t page_bytes = geometry.page_bytes();
  for (const TileLive& tile : tiles) {
    SPINDLE_CHECK(tile.tile < stripes.size());
    const uint8_t* page = stripes[tile.tile];
    for (uint32_t lane = 0; lane < kStripeTokens; lane += page_tokens, page += page_bytes) {
      if (LiveInPage(geometry, tile, lane) != 0) {
        runs->push_back(PageRun(geometry, tile, lane, page));
      }
    }
  }
}

}  // namespace spindle::sparse
