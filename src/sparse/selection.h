// What a row attends to, of one layer and KV head. Thread-safety: value type; buffers only grow.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace spindle::sparse {

// The 64 positions of one absolute stripe; bit j of `live`: position 64 · tile + j may be attended.
struct TileLive {
  uint32_t tile;
  uint64_t live;
};

// Tokens of one segment that an algorithm keeps together in an order of its own.
struct ClusterUse {
  uint32_t segment;
  uint16_t id;             // in the segment
  uint16_t begin;          // members of the segment's clusters before it
  uint16_t count;          // > 0
  const uint16_t* tokens;  // [count] ascending, from the segment's first token on; of the index
};

struct Selection {
  static constexpr float kNoEstimate = std::numeric_limits<float>::quiet_NaN();

  // Each has at least one live lane; ascending.
  std::vector<TileLive> tiles;

  // Attended behind the tiles of their segment, in tiles of 64 lanes that their tokens fill one
  // after the other. By (segment, id) ascending; no token is in a live lane of `tiles` too.
  std::vector<ClusterUse> clusters;

  // What was estimated instead of attended to: the row's last span, [group][head_dim + 2] states as
  // in kernels::AttentionItem::last_span; empty: none.
  std::vector<float> estimate;
  uint32_t estimated_tokens = 0;

  // Share of the row's attention mass that the algorithm estimates to lie on what is selected: the
  // least over the query heads. kNoEstimate: it makes none.
  float mass = kNoEstimate;

  void Clear() {
    tiles.clear();
    clusters.clear();
    estimate.clear();
    estimated_tokens = 0;
    mass = kNoEstimate;
  }

  [[nodiscard]] uint32_t CountAttended() const;
};

}  // namespace spindle::sparse
