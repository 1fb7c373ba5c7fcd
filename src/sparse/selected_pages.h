// A selection as pages of the fast tier: pages of consecutive tokens, and pieces of clusters, which
// are packed into a page of their own (RetroInfer's "derived" order exists nowhere else).
// Thread-safety: pure functions; SelectedPages is one worker's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/attention.h"
#include "kv/fast/page_copy.h"
#include "kv/kv_geometry.h"
#include "sparse/run_builder.h"
#include "sparse/selection.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

// Ids of the pages of a cache set. Those of a segment follow each other, first the pages of its
// consecutive tokens, then pieces, if its algorithm has clusters.
class FastPageIds {
 public:
  // `algorithm` may be null: dense.
  FastPageIds(const kv::KvGeometry& geometry, const SparseAlgorithm* algorithm);

  // Of the page that holds the tokens from page · page_tokens on.
  [[nodiscard]] uint32_t OfPage(uint32_t page) const {
    return page / pages_per_segment_ * ids_per_segment_ + page % pages_per_segment_;
  }

  // Of a piece that begins with member `first` of a cluster. No two pieces of a segment share an
  // id: a cluster of n members has at most n / page_tokens + 1 pieces.
  [[nodiscard]] uint32_t OfPiece(const ClusterUse& cluster, uint32_t first) const {
    return cluster.segment * ids_per_segment_ + pages_per_segment_ + cluster.id +
           cluster.begin / page_tokens_ + first / page_tokens_;
  }

  // Ids below this belong to the first `num_tokens` tokens.
  [[nodiscard]] uint32_t CountFor(uint64_t num_tokens) const;

  // What attention takes as a whole.
  [[nodiscard]] uint32_t ids_per_segment() const { return ids_per_segment_; }

 private:
  uint32_t page_tokens_;
  uint32_t pages_per_segment_;
  uint32_t ids_per_segment_;
};

// Frames that hold any selection from one segment.
[[nodiscard]] uint32_t MostPagesOfSegment(const kv::KvGeometry& geometry);

class SelectedPages {
 public:
  explicit SelectedPages(const kv::KvGeometry& geometry) : geometry_(geometry) {}

  // Selections of so many pages need no allocation.
  void Reserve(size_t num_pages);

  // `selection` is borrowed.
  void Assign(const Selection& selection, const FastPageIds& ids);

  [[nodiscard]] std::span<const uint32_t> ids() const { return ids_; }

  // Notes the copies of page i into a frame. `offset`: of the layer and head in a stripe. Returns
  // the bytes.
  uint64_t AddCopies(uint32_t i, std::span<uint8_t* const> stripes, size_t offset, uint8_t* frame);

  // Copies what was noted.
  void RunCopies();

  // The runs of pages [begin, end), page i in the frame at frame_of(i). REQUIRES: whole segments.
  template <typename FrameOf>
  void AppendRuns(uint32_t begin,
                  uint32_t end,
                  const FrameOf& frame_of,
                  std::vector<kernels::KvRun>* runs) const {
    ClusterLanes lanes(runs);
    for (uint32_t i = begin; i < end; ++i) {
      const Place& place = places_[i];
      uint8_t* const frame = frame_of(i);
      if (!place.is_piece) {
        runs->push_back(PageRun(geometry_, selection_->tiles[place.source], place.first, frame));
        continue;
      }
      const ClusterUse& cluster = selection_->clusters[place.source];
      lanes.Append(geometry_, cluster.segment, frame, PieceTokens(cluster, place.first));
      if (i + 1 == end || !places_[i + 1].is_piece ||
          selection_->clusters[places_[i + 1].source].segment != cluster.segment) {
        lanes.EndSegment();
      }
    }
  }

 private:
  struct Place {
    uint32_t source;  // of the selection's tiles or clusters
    uint16_t first;   // lane of the tile, or member of the cluster
    bool is_piece;
  };

  [[nodiscard]] uint32_t PieceTokens(const ClusterUse& cluster, uint32_t first) const;
  void AddTiles(size_t begin, size_t end, const FastPageIds& ids);

  const kv::KvGeometry geometry_;
  const Selection* selection_ = nullptr;
  std::vector<uint32_t> ids_;
  std::vector<Place> places_;
  std::vector<kv::PageCopy> page_copies_;
  std::vector<kv::PageCopy> row_copies_;
};

}  // namespace spindle::sparse
