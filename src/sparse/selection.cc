#include "sparse/selection.h"

#include <bit>

namespace spindle::sparse {

uint32_t Selection::CountAttended() const {
  uint32_t count = 0;
  for (const TileLive& tile : tiles) {
    count += static_cast<uint32_t>(std::popcount(tile.live));
  }
  for (const ClusterUse& cluster : clusters) {
    count += cluster.count;
  }
  return count;
}

}  // namespace spindle::sparse
