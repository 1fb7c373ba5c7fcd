// Turns selected tiles into the runs of KV rows that attention kernels read.
// Thread-safety: pure functions over the caller's memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/attention.h"
#include "kv/kv_geometry.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

// The live lanes of a tile that lie in the page beginning at `lane`, from bit 0 on.
[[nodiscard]] inline uint64_t LiveInPage(const kv::KvGeometry& geometry,
                                         const TileLive& tile,
                                         uint32_t lane) {
  return (tile.live >> lane) & ((uint64_t{1} << geometry.page_tokens()) - 1);
}

// Appends the pages with a live lane of `tiles` (ascending): page i holds the positions from
// i · page_tokens on.
void AppendPages(const kv::KvGeometry& geometry,
                 std::span<const TileLive> tiles,
                 std::vector<uint32_t>* pages);

// The run of one page at `page`, which begins at `lane` of its tile: from its first to its last
// live lane, so that nothing beside them is read. REQUIRES: the page has a live lane.
[[nodiscard]] kernels::KvRun PageRun(const kv::KvGeometry& geometry,
                                     const TileLive& tile,
                                     uint32_t lane,
                                     const uint8_t* page);

// Appends the runs of `tiles` (ascending) to `runs`: one run per page with a live lane. Addresses
// are those of layer 0 and head 0; since addresses are affine, layer l and head h lie
// l · extent_bytes + h · head_bytes further, for every run alike.
// Allocates only when `runs` has no capacity left. REQUIRES: stripes[tile] exists for every tile.
void AppendRuns(const kv::KvGeometry& geometry,
                std::span<uint8_t* const> stripes,
                std::span<const TileLive> tiles,
                std::vector<kernels::KvRun>* runs);

// The tile that tokens of a segment in an algorithm's own order are attended as: behind those of
// the segment's stripes, and, since the segment is complete, in the past of every row.
[[nodiscard]] constexpr uint32_t ClusterTile(uint32_t segment) {
  return segment * kernels::kSpanTiles + kernels::kSpanTiles - 1;
}

// Walks a selection in the order of the fold: on_tiles(first, end) for stretches of tiles, then
// on_cluster(i, is_last) for the clusters of the segment that these end with, is_last of it.
template <typename OnTiles, typename OnCluster>
void ForEachInFold(const Selection& selection,
                   const OnTiles& on_tiles,
                   const OnCluster& on_cluster) {
  const std::vector<TileLive>& tiles = selection.tiles;
  const std::vector<ClusterUse>& clusters = selection.clusters;
  size_t tile = 0;
  for (size_t i = 0; i < clusters.size(); ++i) {
    const size_t first = tile;
    while (tile < tiles.size() && tiles[tile].tile <= ClusterTile(clusters[i].segment)) {
      ++tile;
    }
    on_tiles(first, tile);
    on_cluster(i, i + 1 == clusters.size() || clusters[i + 1].segment != clusters[i].segment);
  }
  on_tiles(tile, tiles.size());
}

// Hands out the lanes of such tiles one after the other. Lanes of a run that crosses the end of a
// tile are cut there.
class ClusterLanes {
 public:
  explicit ClusterLanes(std::vector<kernels::KvRun>* runs) : runs_(runs) {}

  // Appends `count` consecutive token rows.
  void Append(const kv::KvGeometry& geometry,
              uint32_t segment,
              const uint8_t* k_rows,
              uint32_t count);

  // No more rows of this segment.
  void EndSegment();

 private:
  std::vector<kernels::KvRun>* runs_;
  uint32_t lane_ = 0;
};

// Appends the runs of a selection in the order of the fold: as AppendRuns, and rows of clusters
// where they are in the stripes.
void AppendSelectionRuns(const kv::KvGeometry& geometry,
                         std::span<uint8_t* const> stripes,
                         const Selection& selection,
                         std::vector<kernels::KvRun>* runs);

}  // namespace spindle::sparse
