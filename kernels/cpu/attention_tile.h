// One tile of KV as 64 row addresses, and which of its lanes a query row may see.
// Thread-safety: pure functions over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cpu/simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

inline constexpr uint64_t kAllLanes = ~uint64_t{0};

// Stands in for the K and V rows of dead lanes, whose memory is never read.
alignas(64) static const uint8_t kZeroRow[kMaxHeadDim * sizeof(float)] = {};

// Addresses of the K and V row of each lane.
struct TileRows {
  const uint8_t* k[kTileTokens];
  const uint8_t* v[kTileTokens];
};

// Bits [0, count).
SPINDLE_INLINE uint64_t LowBits(uint64_t count) {
  return count >= 64 ? kAllLanes : (uint64_t{1} << count) - 1;
}

// First run after the tile that starts at `begin`.
SPINDLE_INLINE uint32_t TileEnd(const KvRun* runs, uint32_t begin, uint32_t end) {
  while (begin < end && runs[begin].last_of_tile == 0) {
    ++begin;
  }
  return begin < end ? begin + 1 : end;
}

// Whether any of the 16 lanes from `first` on is set.
SPINDLE_INLINE bool AnyOfSixteen(uint64_t lanes, size_t first) {
  return ((lanes >> first) & 0xFFFFU) != 0;
}

// Lanes that exist in the runs and are live.
SPINDLE_INLINE uint64_t LiveLanes(const KvRun* runs, uint32_t begin, uint32_t end) {
  uint64_t live = 0;
  for (uint32_t r = begin; r < end; ++r) {
    live |= runs[r].live & (LowBits(runs[r].count) << runs[r].first_lane);
  }
  return live;
}

// Lanes of tile `tile` at positions (position - window, position].
SPINDLE_INLINE uint64_t LanesSeenFrom(uint64_t position, uint32_t window, uint32_t tile) {
  const uint64_t base = uint64_t{tile} * kTileTokens;
  if (position < base) {
    return 0;
  }
  uint64_t lanes = LowBits(position - base + 1);
  if (window != 0 && position >= base + window) {
    lanes &= ~LowBits(position - base - window + 1);
  }
  return lanes;
}

// What the query rows of a unit see of one tile.
struct TileVisibility {
  uint64_t any;    // lanes that at least one row sees
  uint64_t every;  // lanes that all rows see
};

// Fills `masks[r]` with the lanes that token row `row_begin` + r sees of the tile in runs
// [run_begin, run_end).
[[maybe_unused]] static inline TileVisibility FindVisibleLanes(const AttentionItem& item,
                                                               uint32_t row_begin,
                                                               uint32_t num_rows,
                                                               uint32_t run_begin,
                                                               uint32_t run_end,
                                                               uint64_t* masks) {
  const uint64_t live = LiveLanes(item.runs, run_begin, run_end);
  const uint32_t tile = item.runs[run_begin].tile;
  TileVisibility lanes = {.any = 0, .every = kAllLanes};
  for (uint32_t r = 0; r < num_rows; ++r) {
    const uint64_t position = uint64_t{item.first_position} + row_begin + r;
    masks[r] = live & LanesSeenFrom(position, item.window, tile);
    lanes.any |= masks[r];
    lanes.every &= masks[r];
  }
  return lanes;
}

// Row addresses of the lanes in `lanes`; all others point to zeros.
[[maybe_unused]] static inline void FillTileRows(const AttentionItem& item,
                                                 uint32_t run_begin,
                                                 uint32_t run_end,
                                                 size_t element_bytes,
                                                 uint64_t lanes,
                                                 TileRows* rows) {
  if (lanes != kAllLanes) {
    for (uint32_t lane = 0; lane < kTileTokens; ++lane) {
      rows->k[lane] = kZeroRow;
      rows->v[lane] = kZeroRow;
    }
  }
  for (uint32_t r = run_begin; r < run_end; ++r) {
    const KvRun& run = item.runs[r];
    const uint8_t* const k = static_cast<const uint8_t*>(run.k) + item.kv_offset;
    const uint8_t* const v = static_cast<const uint8_t*>(run.v) + item.kv_offset;
    const size_t stride = run.row_stride * element_bytes;
    const uint64_t wanted = lanes >> run.first_lane;
    const uint8_t** const k_rows = rows->k + run.first_lane;
    const uint8_t** const v_rows = rows->v + run.first_lane;
    if ((wanted & LowBits(run.count)) == LowBits(run.count)) {
      for (uint32_t row = 0; row < run.count; ++row) {
        k_rows[row] = k + row * stride;
        v_rows[row] = v + row * stride;
      }
      continue;
    }
    for (uint64_t left = wanted & LowBits(run.count); left != 0; left &= left - 1) {
      const auto row = static_cast<uint32_t>(__builtin_ctzll(left));
      k_rows[row] = k + row * stride;
      v_rows[row] = v + row * stride;
    }
  }
}

// Asks for the rows of the next tile while the current one is computed: pages lie apart, which the
// hardware's own prefetchers do not follow. A few rows at a time, because a burst would fill the
// reorder buffer with requests and stop the computation until they are served.
class RowPrefetcher {
 public:
  // From the first to the last live row of each of the runs [begin, end); dead rows between them
  // are asked for as well.
  void Start(const AttentionItem& item, uint32_t begin, uint32_t end, size_t row_bytes) {
    count_ = 0;
    next_ = 0;
    lines_per_row_ = static_cast<uint32_t>((row_bytes + kLineBytes - 1) / kLineBytes);
    const size_t element_bytes = row_bytes / head_dim_;
    for (uint32_t r = begin; r < end; ++r) {
      const KvRun& run = item.runs[r];
      const uint64_t live = (run.live >> run.first_lane) & LowBits(run.count);
      if (live == 0 || count_ + 2 > kMaxPieces) {
        continue;
      }
      const size_t stride = run.row_stride * element_bytes;
      const auto first = static_cast<uint32_t>(__builtin_ctzll(live));
      const uint32_t num_rows = 64 - static_cast<uint32_t>(__builtin_clzll(live)) - first;
      const size_t offset = item.kv_offset + first * stride;
      for (const void* const from : {run.k, run.v}) {
        pieces_[count_++] = {
            static_cast<const uint8_t*>(from) + offset,
            static_cast<const uint8_t*>(from) + offset + (num_rows - 1) * stride + row_bytes};
      }
    }
  }

  void Stop() { next_ = count_; }

  explicit RowPrefetcher(uint32_t head_dim) : head_dim_(head_dim) {}

  // Asks for as much as `num_rows` rows have, or for what is left.
  void Advance(uint32_t num_rows) {
    uint64_t left = uint64_t{num_rows} * lines_per_row_;
    while (left > 0 && next_ < count_) {
      const uint8_t* const from = pieces_[next_].next;
      const auto bytes = static_cast<uint64_t>(pieces_[next_].end - from);
      const uint64_t lines = (bytes + kLineBytes - 1) / kLineBytes;
      const uint64_t count = lines < left ? lines : left;
      for (uint64_t line = 0; line < count; ++line) {
        __builtin_prefetch(from + line * kLineBytes, 0, 2);
      }
      pieces_[next_].next = from + count * kLineBytes;
      next_ += count == lines ? 1U : 0U;
      left -= count;
    }
  }

 private:
  static constexpr size_t kLineBytes = 64;
  static constexpr uint32_t kMaxPieces = 2 * kTileTokens;

  struct Piece {
    const uint8_t* next;
    const uint8_t* end;
  };

  uint32_t head_dim_;
  uint32_t count_ = 0;
  uint32_t next_ = 0;
  uint32_t lines_per_row_ = 0;
  Piece pieces_[kMaxPieces];
};

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
