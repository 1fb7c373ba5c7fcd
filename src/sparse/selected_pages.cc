#include "sparse/selected_pages.h"

#include <algorithm>

#include "base/prefix_key.h"
#include "kernels/api/cluster.h"

namespace spindle::sparse {
namespace {

uint32_t PagesPerSegment(const kv::KvGeometry& geometry) {
  return static_cast<uint32_t>(kSegmentTokens) / geometry.page_tokens();
}

}  // namespace

FastPageIds::FastPageIds(const kv::KvGeometry& geometry, const SparseAlgorithm* algorithm)
    : page_tokens_(geometry.page_tokens()),
      pages_per_segment_(PagesPerSegment(geometry)),
      ids_per_segment_(pages_per_segment_) {
  if (algorithm != nullptr && algorithm->index_unit() == IndexUnit::kSegment) {
    ids_per_segment_ += MostPagesOfSegment(geometry);
  }
}

uint32_t FastPageIds::CountFor(uint64_t num_tokens) const {
  const auto num_pages = static_cast<uint32_t>((num_tokens + page_tokens_ - 1) / page_tokens_);
  return num_pages == 0 ? 0 : OfPage(num_pages - 1) + 1;
}

uint32_t MostPagesOfSegment(const kv::KvGeometry& geometry) {
  return PagesPerSegment(geometry) + kernels::kMaxSegmentClusters;
}

void SelectedPages::Reserve(size_t num_pages) {
  ids_.reserve(num_pages);
  places_.reserve(num_pages);
  page_copies_.reserve(num_pages);
}

uint32_t SelectedPages::PieceTokens(const ClusterUse& cluster, uint32_t first) const {
  return std::min(cluster.count - first, geometry_.page_tokens());
}

void SelectedPages::AddTiles(size_t begin, size_t end, const FastPageIds& ids) {
  const uint32_t page_tokens = geometry_.page_tokens();
  const auto pages_per_tile = static_cast<uint32_t>(kStripeTokens) / page_tokens;
  for (size_t i = begin; i < end; ++i) {
    const TileLive& tile = selection_->tiles[i];
    for (uint32_t page = 0; page < pages_per_tile; ++page) {
      if (LiveInPage(geometry_, tile, page * page_tokens) != 0) {
        ids_.push_back(ids.OfPage(tile.tile * pages_per_tile + page));
        places_.push_back({.source = static_cast<uint32_t>(i),
                           .first = static_cast<uint16_t>(page * page_tokens),
                           .is_piece = false});
      }
    }
  }
}

void SelectedPages::Assign(const Selection& selection, const FastPageIds& ids) {
  selection_ = &selection;
  ids_.clear();
  places_.clear();
  ForEachInFold(
      selection,
      [&](size_t first, size_t end) { AddTiles(first, end, ids); },
      [&](size_t i, bool /*is_last*/) {
        const ClusterUse& cluster = selection.clusters[i];
        for (uint32_t first = 0; first < cluster.count; first += geometry_.page_tokens()) {
          ids_.push_back(ids.OfPiece(cluster, first));
          places_.push_back({.source = static_cast<uint32_t>(i),
                             .first = static_cast<uint16_t>(first),
                             .is_piece = true});
        }
      });
}

uint64_t SelectedPages::AddCopies(uint32_t i,
                                  std::span<uint8_t* const> stripes,
                                  size_t offset,
                                  uint8_t* frame) {
  const Place& place = places_[i];
  if (!place.is_piece) {
    const uint8_t* const stripe = stripes[selection_->tiles[place.source].tile];
    page_copies_.push_back({stripe + offset + geometry_.row_offset(0, place.first), frame});
    return geometry_.page_bytes();
  }
  const ClusterUse& cluster = selection_->clusters[place.source];
  const uint32_t count = PieceTokens(cluster, place.first);
  const size_t row_bytes = geometry_.row_bytes();
  for (uint32_t j = 0; j < count; ++j, frame += row_bytes) {
    const size_t position = cluster.segment * kSegmentTokens + cluster.tokens[place.first + j];
    const uint8_t* const row =
        stripes[position / kStripeTokens] + offset +
        geometry_.row_offset(0, static_cast<uint32_t>(position % kStripeTokens));
    row_copies_.push_back({row, frame});
    row_copies_.push_back({row + geometry_.v_offset(), frame + geometry_.v_offset()});
  }
  return 2 * count * row_bytes;
}

void SelectedPages::RunCopies() {
  kv::CopyPages(page_copies_, geometry_.page_bytes());
  kv::CopyPages(row_copies_, geometry_.row_bytes());
  page_copies_.clear();
  row_copies_.clear();
}

}  // namespace spindle::sparse
