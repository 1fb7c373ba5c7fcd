#include "sparse/dense/dense_algorithm.h"

#include "base/prefix_key.h"

namespace spindle::sparse {

uint32_t WriteAllTiles(uint32_t num_tokens, std::span<TileLive> out) {
  constexpr uint32_t kLanes = kStripeTokens;
  const uint32_t num_full = num_tokens / kLanes;
  const uint32_t rest = num_tokens % kLanes;
  for (uint32_t tile = 0; tile < num_full; ++tile) {
    out[tile] = {.tile = tile, .live = ~uint64_t{0}};
  }
  if (rest == 0) {
    return num_full;
  }
  out[num_full] = {.tile = num_full, .live = (uint64_t{1} << rest) - 1};
  return num_full + 1;
}

}  // namespace spindle::sparse
