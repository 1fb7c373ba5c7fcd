// How much of their contexts the rows of generated tokens attended to.
// Thread-safety: value type.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spindle::sparse {

// Of one sequence since it began. The share of a row is the mean, over its sparse layers and KV
// heads, of distinct attended tokens ÷ context tokens.
struct DecodeUse {
  uint32_t sparse_rows = 0;  // with a choice in some layer
  uint32_t dense_rows = 0;   // under a policy, and yet attended to everything
  double share_sum = 0;      // of sparse rows
  double share_min = 1;
  double share_max = 0;
  double last_share = 0;  // of the last row; 0: it attended to everything

  void AddSparseRow(double share) {
    ++sparse_rows;
    last_share = share;
    share_sum += share;
    share_min = std::min(share_min, share);
    share_max = std::max(share_max, share);
  }

  void AddDenseRows(uint32_t count) {
    dense_rows += count;
    last_share = 0;
  }

  DecodeUse& operator+=(const DecodeUse& other) {
    sparse_rows += other.sparse_rows;
    dense_rows += other.dense_rows;
    share_sum += other.share_sum;
    share_min = std::min(share_min, other.share_min);
    share_max = std::max(share_max, other.share_max);
    return *this;
  }
};

}  // namespace spindle::sparse
