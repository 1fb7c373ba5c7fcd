#include "sparse/run_builder.h"

#include <bit>

#include "base/status_macros.h"

namespace spindle::sparse {

static_assert(kernels::kTileTokens == kStripeTokens, "a tile is one stripe");

void AppendRuns(const kv::KvGeometry& geometry,
                std::span<uint8_t* const> stripes,
                std::span<const TileLive> tiles,
                std::vector<kernels::KvRun>* runs) {
  const uint32_t page_tokens = geometry.page_tokens();
  const size_t page_bytes = geometry.page_bytes();
  const size_t v_offset = geometry.v_offset();
  const uint64_t page_mask = (uint64_t{1} << page_tokens) - 1;
  for (const TileLive& tile : tiles) {
    SPINDLE_CHECK(tile.tile < stripes.size());
    const uint8_t* page = stripes[tile.tile];
    for (uint32_t lane = 0; lane < kStripeTokens; lane += page_tokens, page += page_bytes) {
      const uint64_t live = (tile.live >> lane) & page_mask;
      if (live == 0) {
        continue;
      }
      runs->push_back(
          {.k = page,
           .v = page + v_offset,
           .live = tile.live,
           .row_stride = geometry.head_dim,
           .tile = tile.tile,
           .count = static_cast<uint16_t>(std::bit_width(live)),
           .first_lane = static_cast<uint8_t>(lane),
           .last_of_tile = static_cast<uint8_t>(lane + page_tokens == kStripeTokens ||
                                                tile.live >> (lane + page_tokens) == 0)});
    }
  }
}

}  // namespace spindle::sparse
