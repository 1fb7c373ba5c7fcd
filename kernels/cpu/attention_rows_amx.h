// Which tiles of KV a unit works on in which order, and K as operands of tile instructions.
// Thread-safety: pure functions and values over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "kernels/api/attention.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

inline constexpr uint32_t kTileRowsMax = 16;
inline constexpr uint32_t kKeyBlocks = kTileTokens / kTileRowsMax;

// Tiles of a unit in the order of work: all heads of a tile, then the next tile. A stripe keeps its
// heads side by side, so that this order reads the longest pieces.
class TileWalk {
 public:
  TileWalk(const AttentionItem* items, const AttentionUnit& unit)
      : items_(items), unit_(unit), run_begin_(unit.run_begin), run_end_(unit.run_begin) {
    FindTile();
  }

  [[nodiscard]] bool done() const { return run_begin_ >= unit_.run_end; }

  [[nodiscard]] uint32_t head() const { return head_; }

  [[nodiscard]] const AttentionItem& item() const { return items_[unit_.item + head_]; }

  [[nodiscard]] uint32_t run_begin() const { return run_begin_; }

  [[nodiscard]] uint32_t run_end() const { return run_end_; }

  void Next() {
    if (++head_ == unit_.num_heads) {
      head_ = 0;
      run_begin_ = run_end_;
      FindTile();
    }
  }

 private:
  void FindTile() { run_end_ = TileEnd(items_[unit_.item].runs, run_begin_, unit_.run_end); }

  const AttentionItem* items_;
  const AttentionUnit& unit_;
  uint32_t head_ = 0;
  uint32_t run_begin_;
  uint32_t run_end_;
};

// K rows of 16 lanes at an even distance.
struct KeyBlock {
  const uint8_t* base;
  size_t stride;
};

// Blocks of the 64 K rows of a tile where they lie, or in `copies` where their distance is uneven.
SPINDLE_INLINE void FindKeyBlocks(const uint8_t* const* rows,
                                  size_t row_bytes,
                                  uint16_t* copies,
                                  KeyBlock* blocks) {
  for (uint32_t block = 0; block < kKeyBlocks; ++block) {
    const uint8_t* const* const first = rows + size_t{block} * kTileRowsMax;
    const ptrdiff_t stride = first[1] - first[0];
    bool even = stride > 0;
    for (uint32_t i = 2; i < kTileRowsMax; ++i) {
      even = even && first[i] - first[i - 1] == stride;
    }
    if (even) {
      blocks[block] = {first[0], static_cast<size_t>(stride)};
      continue;
    }
    uint8_t* const copy =
        reinterpret_cast<uint8_t*>(copies) + size_t{block} * kTileRowsMax * row_bytes;
    for (uint32_t i = 0; i < kTileRowsMax; ++i) {
      for (size_t byte = 0; byte < row_bytes; byte += 32) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy + i * row_bytes + byte),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first[i] + byte)));
      }
    }
    blocks[block] = {copy, row_bytes};
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
