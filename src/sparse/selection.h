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

struct Selection {
  static constexpr float kNoEstimate = std::numeric_limits<float>::quiet_NaN();

  // Each has at least one live lane; ascending.
  std::vector<TileLive> tiles;

  // Share of the row's attention mass that the algorithm estimates to lie on what is selected: the
  // least over the query heads. kNoEstimate: it makes none.
  float mass = kNoEstimate;
};

}  // namespace spindle::sparse
