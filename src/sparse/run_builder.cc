#include "sparse/run_builder.h"

#include <algorithm>
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

void ClusterLanes::Append(const kv::KvGeometry& geometry,
                          uint32_t segment,
                          const uint8_t* k_rows,
                          uint32_t count) {
  while (count > 0) {
    const uint32_t fitting = std::min(count, kernels::kTileTokens - lane_);
    runs_->push_back({.k = k_rows,
                      .v = k_rows + geometry.v_offset(),
                      .live = ~uint64_t{0},
                      .row_stride = geometry.head_dim,
                      .tile = ClusterTile(segment),
                      .count = static_cast<uint16_t>(fitting),
                      .first_lane = static_cast<uint8_t>(lane_),
                      .last_of_tile = 0});
    lane_ += fitting;
    count -= fitting;
    k_rows += fitting * geometry.row_bytes();
    if (lane_ == kernels::kTileTokens) {
      EndSegment();
    }
  }
}

void ClusterLanes::EndSegment() {
  if (lane_ > 0) {
    runs_->back().last_of_tile = 1;
    lane_ = 0;
  }
}

namespace {

void AppendClusterRuns(const kv::KvGeometry& geometry,
                       std::span<uint8_t* const> stripes,
                       const ClusterUse& cluster,
                       ClusterLanes* lanes) {
  const uint32_t page_tokens = geometry.page_tokens();
  for (uint32_t i = 0; i < cluster.count;) {
    const uint32_t token = cluster.tokens[i];
    uint32_t end = i + 1;
    while (end < cluster.count && cluster.tokens[end] == token + (end - i) &&
           cluster.tokens[end] % page_tokens != 0) {
      ++end;
    }
    const size_t position = cluster.segment * kSegmentTokens + token;
    lanes->Append(geometry,
                  cluster.segment,
                  stripes[position / kStripeTokens] +
                      geometry.row_offset(0, static_cast<uint32_t>(position % kStripeTokens)),
                  end - i);
    i = end;
  }
}

}  // namespace

void AppendSelectionRuns(const kv::KvGeometry& geometry,
                         std::span<uint8_t* const> stripes,
                         const Selection& selection,
                         std::vector<kernels::KvRun>* runs) {
  ClusterLanes lanes(runs);
  ForEachInFold(
      selection,
      [&](size_t first, size_t end) {
        AppendRuns(geometry, stripes, std::span(selection.tiles).subspan(first, end - first), runs);
      },
      [&](size_t i, bool is_last) {
        AppendClusterRuns(geometry, stripes, selection.clusters[i], &lanes);
        if (is_last) {
          lanes.EndSegment();
        }
      });
}

}  // namespace spindle::sparse
