#include "sparse/dense/dense_algorithm.h"

#include "base/prefix_key.h"

namespace spindle::sparse {

void AppendAllTiles(uint32_t num_tokens, std::vector<TileLive>* out) {
  constexpr uint32_t kLanes = kStripeTokens;
  const uint32_t num_full = num_tokens / kLanes;
  const uint32_t rest = num_tokens % kLanes;
  for (uint32_t tile = 0; tile < num_full; ++tile) {
    out->push_back({.tile = tile, .live = ~uint64_t{0}});
  }
  if (rest != 0) {
    out->push_back({.tile = num_full, .live = (uint64_t{1} << rest) - 1});
  }
}

}  // namespace spindle::sparse
