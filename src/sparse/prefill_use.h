// How much of what they could attend to the sparse blocks of a prompt attended to.
// Thread-safety: value type.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spindle::sparse {

// Of one sequence since it began, blocks computed again included. The share of a block is the mean,
// over its sparse layers and KV heads, of distinct attended tokens ÷ tokens up to its last row.
struct PrefillUse {
  uint32_t sparse_blocks = 0;
  double share_sum = 0;  // of sparse blocks
  double share_min = 1;
  double share_max = 0;

  void AddBlock(double share) {
    ++sparse_blocks;
    share_sum += share;
    share_min = std::min(share_min, share);
    share_max = std::max(share_max, share);
  }

  // Without sparse blocks everything was attended to.
  [[nodiscard]] double MeanShare() const {
    return sparse_blocks == 0 ? 1 : share_sum / sparse_blocks;
  }

  [[nodiscard]] double MaxShare() const { return sparse_blocks == 0 ? 1 : share_max; }

  PrefillUse& operator+=(const PrefillUse& other) {
    sparse_blocks += other.sparse_blocks;
    share_sum += other.share_sum;
    share_min = std::min(share_min, other.share_min);
    share_max = std::max(share_max, other.share_max);
    return *this;
  }
};

}  // namespace spindle::sparse
