// The bf16 product with AMX tiles, for any number of rows: a tile product rounds otherwise than the
// vector instruction, so one kind is used throughout. The sums of a row do not depend on the other
// rows of its tile.
#pragma once

#include <cstdint>

#include <immintrin.h>

#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/tiles.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

inline constexpr uint32_t kBf16TileRows = 16;
inline constexpr size_t kBf16TileBytes = 1024;  // 32 inputs × 16 outputs

// Tiles: 0, 1 and 2, 3 sums of the first and second tile of rows for two panels; 4, 5 rows; 6, 7
// weights.
[[maybe_unused]] static void ConfigureBf16Tiles(uint32_t rows0, uint32_t rows1) {
  TileConfig config;
  config.Set(0, rows0, 64);
  config.Set(1, rows0, 64);
  config.Set(2, rows1, 64);
  config.Set(3, rows1, 64);
  config.Set(4, rows0, 64);
  config.Set(5, rows1, 64);
  config.Set(6, 16, 64);
  config.Set(7, 16, 64);
  LoadTileConfig(config);
}

struct alignas(64) Bf16Sums {
  float values[2][2][kBf16TileRows * kPanelOutputs];  // [tile of rows][panel][row][output]
};

// REQUIRES: tiles configured with rows in the second tile exactly if kTwoRowTiles.
template <bool kTwoRowTiles, bool kTwoPanels>
SPINDLE_INLINE void Bf16Tile(const uint8_t* x,
                             size_t stride_bytes,
                             const uint8_t* weights,
                             size_t panel_bytes,
                             Bf16Sums& out) {
  const uint8_t* x1 = x + kBf16TileRows * stride_bytes;
  _tile_zero(0);
  if constexpr (kTwoPanels) {
    _tile_zero(1);
  }
  if constexpr (kTwoRowTiles) {
    _tile_zero(2);
    if constexpr (kTwoPanels) {
      _tile_zero(3);
    }
  }
  for (size_t offset = 0; offset < panel_bytes; offset += kBf16TileBytes) {
    const size_t x_offset = offset / 16;
    for (size_t line = 0; line < kBf16TileBytes; line += 64) {
      __builtin_prefetch(weights + offset + 4 * kBf16TileBytes + line);
    }
    _tile_loadd(6, weights + offset, 64);
    _tile_loadd(4, x + x_offset, stride_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoPanels) {
      _tile_loadd(7, weights + panel_bytes + offset, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoRowTiles) {
      _tile_loadd(5, x1 + x_offset, stride_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kTwoPanels) {
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, out.values[0][0], 64);
  if constexpr (kTwoPanels) {
    _tile_stored(1, out.values[0][1], 64);
  }
  if constexpr (kTwoRowTiles) {
    _tile_stored(2, out.values[1][0], 64);
    if constexpr (kTwoPanels) {
      _tile_stored(3, out.values[1][1], 64);
    }
  }
}

// Rows [first, first + rows) of one or two panels, rows ≤ 32.
[[maybe_unused]] static void Bf16Rows(const GemmArgs& args,
                                      size_t panel_bytes,
                                      uint32_t first,
                                      uint32_t rows,
                                      uint32_t panel,
                                      bool two_panels) {
  const auto* weights = static_cast<const uint8_t*>(args.weights->data) + panel_bytes * panel;
  const auto* x = static_cast<const uint8_t*>(args.x) + args.x_stride_bytes * first;
  Bf16Sums sums;
  const bool two_tiles = rows > kBf16TileRows;
  if (two_tiles && two_panels) {
    Bf16Tile<true, true>(x, args.x_stride_bytes, weights, panel_bytes, sums);
  } else if (two_tiles) {
    Bf16Tile<true, false>(x, args.x_stride_bytes, weights, panel_bytes, sums);
  } else if (two_panels) {
    Bf16Tile<false, true>(x, args.x_stride_bytes, weights, panel_bytes, sums);
  } else {
    Bf16Tile<false, false>(x, args.x_stride_bytes, weights, panel_bytes, sums);
  }
  for (uint32_t tile = 0; tile < (two_tiles ? 2U : 1U); ++tile) {
    const uint32_t begin = tile * kBf16TileRows;
    const uint32_t count = rows - begin < kBf16TileRows ? rows - begin : kBf16TileRows;
    for (uint32_t j = 0; j < (two_panels ? 2U : 1U); ++j) {
      StoreOutputs(args, first + begin, count, panel + j, sums.values[tile][j]);
    }
  }
}

[[maybe_unused]] static void GemmBf16Tiles(const GemmArgs& args, PanelRange panels) {
  constexpr uint32_t kRows = 2 * kBf16TileRows;
  const size_t panel_bytes =
      layout::PanelBytes(args.weights->source, args.weights->row_format, args.weights->num_inputs);
  const uint32_t full_end = args.num_rows / kRows * kRows;
  if (full_end > 0) {
    ConfigureBf16Tiles(kBf16TileRows, kBf16TileRows);
    for (uint32_t panel = panels.begin; panel < panels.end; panel += 2) {
      for (uint32_t first = 0; first < full_end; first += kRows) {
        Bf16Rows(args, panel_bytes, first, kRows, panel, panels.end - panel >= 2);
      }
    }
  }
  const uint32_t left = args.num_rows - full_end;
  if (left > 0) {
    const uint32_t rows0 = left < kBf16TileRows ? left : kBf16TileRows;
    ConfigureBf16Tiles(rows0, left - rows0);
    for (uint32_t panel = panels.begin; panel < panels.end; panel += 2) {
      Bf16Rows(args, panel_bytes, full_end, left, panel, panels.end - panel >= 2);
    }
  }
  ReleaseTiles();
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
