// The int8 product with AMX tiles. A tile product gives the exact int32 sums of one block of inputs
// for 8 rows × 16 outputs; they go through a small buffer into the same fp32 operations as in the
// vector path. The fp32 part is the limit (4 operations per 16 sums against 16 cycles of tile work
// per 256), so the tiles of the next block are computed while the sums of this one are scaled.
#pragma once

#include <cstdint>

#include <immintrin.h>

#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/weight_source.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// 8 rows × 2 panels of fp32 sums fill half of the registers and share what they load.
inline constexpr uint32_t kAmxTileRows = 8;

// Rows [first, first + count) of a product; x points to the first of them.
struct TileRows {
  const uint8_t* x;
  size_t stride_bytes;
  uint32_t first;
  uint32_t count;
};

// Tiles: 0, 1 sums of a full tile of rows for two panels; 2, 3 the same for the last `remainder`
// rows; 4 and 5 the rows themselves; 6, 7 the weights.
[[maybe_unused]] static void ConfigureInt8Tiles(uint32_t group, uint32_t remainder) {
  TileConfig config;
  config.Set(0, kAmxTileRows, 64);
  config.Set(1, kAmxTileRows, 64);
  config.Set(2, remainder, 64);
  config.Set(3, remainder, 64);
  config.Set(4, kAmxTileRows, group);
  config.Set(5, remainder, group);
  config.Set(6, group / 4, 64);
  config.Set(7, group / 4, 64);
  LoadTileConfig(config);
}

// The int32 sums of one block: [panel][row][output].
struct alignas(64) BlockSums {
  int32_t values[2][kAmxTileRows * kPanelOutputs];
};

template <bool kFull, uint32_t kPanels>
SPINDLE_INLINE void ComputeBlock(const uint8_t* x,
                                 size_t stride_bytes,
                                 const ExpandedPanel* panels,
                                 size_t code_offset,
                                 BlockSums& out) {
  if constexpr (kFull) {
    _tile_loadd(4, x, stride_bytes);
    _tile_zero(0);
    _tile_loadd(6, panels[0].codes + code_offset, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, out.values[0], 64);
    if constexpr (kPanels == 2) {
      _tile_zero(1);
      _tile_loadd(7, panels[1].codes + code_offset, 64);
      _tile_dpbssd(1, 4, 7);
      _tile_stored(1, out.values[1], 64);
    }
  } else {
    _tile_loadd(5, x, stride_bytes);
    _tile_zero(2);
    _tile_loadd(6, panels[0].codes + code_offset, 64);
    _tile_dpbssd(2, 5, 6);
    _tile_stored(2, out.values[0], 64);
    if constexpr (kPanels == 2) {
      _tile_zero(3);
      _tile_loadd(7, panels[1].codes + code_offset, 64);
      _tile_dpbssd(3, 5, 7);
      _tile_stored(3, out.values[1], 64);
    }
  }
}

// One tile of kRows rows, kRows < 8 being the remainder.
template <uint32_t kGroup, bool kHasMinimum, uint32_t kPanels, uint32_t kRows>
void TiledRows(const GemmArgs& args,
               const TileRows& rows,
               uint32_t first,
               const ExpandedPanel* panels,
               uint32_t panel) {
  constexpr bool kFull = kRows == kAmxTileRows;
  constexpr size_t kGroupBytes = size_t{kGroup} * kPanelOutputs;
  const uint32_t k = args.weights->num_inputs;
  const uint32_t num_groups = k / kGroup;
  const uint8_t* x = rows.x + rows.stride_bytes * first;
  const uint8_t* row_scales = x + k;
  const uint8_t* row_sums = row_scales + size_t{4} * (k / kActivationBlock);
  BlockSums buffers[2];
  F32x16 sums[kPanels][kRows];
  for (uint32_t j = 0; j < kPanels; ++j) {
    for (uint32_t i = 0; i < kRows; ++i) {
      sums[j][i] = Zero();
    }
  }
  ComputeBlock<kFull, kPanels>(x, rows.stride_bytes, panels, 0, buffers[0]);
  for (uint32_t group = 0; group < num_groups; ++group) {
    if (group + 1 < num_groups) {
      ComputeBlock<kFull, kPanels>(x + size_t{kGroup} * (group + 1),
                                   rows.stride_bytes,
                                   panels,
                                   kGroupBytes * (group + 1),
                                   buffers[(group + 1) % 2]);
    }
    const BlockSums& block_sums = buffers[group % 2];
    const size_t block = group / (kActivationBlock / kGroup);
    F32x16 scales[kPanels];
    F32x16 minima[kPanels];
    for (uint32_t j = 0; j < kPanels; ++j) {
      scales[j] = Load(panels[j].scales + size_t{kPanelOutputs} * group);
      minima[j] = kHasMinimum ? Load(panels[j].minima + kPanelOutputs * block) : Zero();
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
      const F32x16 row_scale =
          Splat(*reinterpret_cast<const float*>(row_scales + rows.stride_bytes * i + 4 * block));
      for (uint32_t j = 0; j < kPanels; ++j) {
        const F32x16 dot =
            ToFloat(_mm512_load_si512(block_sums.values[j] + size_t{kPanelOutputs} * i));
        sums[j][i] = MulAdd(dot, Mul(scales[j], row_scale), sums[j][i]);
      }
      if constexpr (kHasMinimum) {
        const F32x16 row_sum =
            Splat(*reinterpret_cast<const float*>(row_sums + rows.stride_bytes * i + 4 * block));
        for (uint32_t j = 0; j < kPanels; ++j) {
          sums[j][i] = MulAdd(minima[j], row_sum, sums[j][i]);
        }
      }
    }
  }
  for (uint32_t i = 0; i < kRows; ++i) {
    for (uint32_t j = 0; j < kPanels; ++j) {
      StoreOutputs(args, rows.first + first + i, panel + j, sums[j][i]);
    }
  }
}

template <uint32_t kGroup, bool kHasMinimum, uint32_t kPanels, uint32_t kRows>
void LastTiledRows(const GemmArgs& args,
                   const TileRows& rows,
                   uint32_t first,
                   const ExpandedPanel* panels,
                   uint32_t panel) {
  if constexpr (kRows > 0) {
    if (rows.count - first == kRows) {
      TiledRows<kGroup, kHasMinimum, kPanels, kRows>(args, rows, first, panels, panel);
    } else {
      LastTiledRows<kGroup, kHasMinimum, kPanels, kRows - 1>(args, rows, first, panels, panel);
    }
  }
}

// All rows of one or two expanded panels. REQUIRES: ConfigureInt8Tiles(kGroup, rows.count %
// kAmxTileRows)
template <uint32_t kGroup, bool kHasMinimum, uint32_t kPanels>
void TiledPanels(const GemmArgs& args,
                 const TileRows& rows,
                 const ExpandedPanel* panels,
                 uint32_t panel) {
  uint32_t first = 0;
  for (; first + kAmxTileRows <= rows.count; first += kAmxTileRows) {
    TiledRows<kGroup, kHasMinimum, kPanels, kAmxTileRows>(args, rows, first, panels, panel);
  }
  LastTiledRows<kGroup, kHasMinimum, kPanels, kAmxTileRows - 1>(args, rows, first, panels, panel);
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
