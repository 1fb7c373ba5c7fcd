// Configuration of the AMX tile registers. It is state of the calling thread: configure before the
// first tile instruction of a product, release after the last. Thread-safety: each thread has its
// own.
#pragma once

#include <cstdint>

#include <immintrin.h>

#include "kernels/cpu/simd.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// The memory operand of LDTILECFG, palette 1.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};

  // A tile without rows stays unconfigured.
  void Set(int tile, uint32_t num_rows, uint32_t num_column_bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    column_bytes[tile] = static_cast<uint16_t>(num_rows == 0 ? 0 : num_column_bytes);
  }
};

SPINDLE_INLINE void LoadTileConfig(const TileConfig& config) {
  // g++ 12 tells the optimiser of the first 8 bytes only and would drop the stores of the others.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// Tile instructions are opaque to the compiler: memory that they read must be written before, and
// the reverse.
SPINDLE_INLINE void TileFence() {
  __asm__ volatile("" : : : "memory");
}

SPINDLE_INLINE void ReleaseTiles() {
  _tile_release();
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
