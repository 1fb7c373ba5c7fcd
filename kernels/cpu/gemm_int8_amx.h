// The int8 product with AMX tiles. A tile product gives the exact int32 sums of one block of inputs
// for 16 rows × 16 outputs; they go through a small buffer into the same fp32 operations as in the
// vector path. The fp32 part is the limit: 4 operations per 16 sums, and one of the two 512-bit
// multiply-add units stands still while tile instructions are in flight. The tile of the next block
// is computed while the sums of this one are scaled. Thread-safety: pure functions but for the tile
// configuration of the calling thread.
#pragma once

#include <cstdint>

#include <immintrin.h>

#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/weight_source.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

inline constexpr uint32_t kAmxTileRows = 16;

// Rows [first, first + count) of a product; x points to the first of them.
struct TileRows {
  const uint8_t* x;
  size_t stride_bytes;
  uint32_t first;
  uint32_t count;
};

// Tiles: 0 sums, 1 rows, 2 weights; 3 and 4 sums and rows of the last `remainder` rows.
[[maybe_unused]] static void ConfigureInt8Tiles(uint32_t group, uint32_t remainder) {
  TileConfig config;
  config.Set(0, kAmxTileRows, 64);
  config.Set(1, kAmxTileRows, group);
  config.Set(2, group / 4, 64);
  config.Set(3, remainder, 64);
  config.Set(4, remainder, group);
  LoadTileConfig(config);
}

// The int32 sums of one block: [row][output].
struct alignas(64) BlockSums {
  int32_t values[kAmxTileRows * kPanelOutputs];
};

template <bool kFull>
SPINDLE_INLINE void ComputeBlock(const uint8_t* x,
                                 size_t stride_bytes,
                                 const uint8_t* codes,
                                 BlockSums& out) {
  _tile_loadd(2, codes, 64);
  if constexpr (kFull) {
    _tile_zero(0);
    _tile_loadd(1, x, stride_bytes);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, out.values, 64);
  } else {
    _tile_zero(3);
    _tile_loadd(4, x, stride_bytes);
    _tile_dpbssd(3, 4, 2);
    _tile_stored(3, out.values, 64);
  }
}

// One tile of kRows rows by one panel; fewer than 16 rows are the remainder.
template <uint32_t kGroup, bool kHasMinimum, uint32_t kRows>
void TiledRows(const uint8_t* x,
               size_t stride_bytes,
               uint32_t k,
               const ExpandedPanel& expanded,
               float (*finished)[kPanelOutputs]) {
  constexpr bool kFull = kRows == kAmxTileRows;
  constexpr size_t kGroupBytes = size_t{kGroup} * kPanelOutputs;
  constexpr uint32_t kGroupsPerBlock = kActivationBlock / kGroup;
  const uint32_t num_groups = k / kGroup;
  // Scales of every fourth row, sums likewise: the rows between are reached with multiples of the
  // stride, which leaves enough general registers.
  constexpr uint32_t kBases = (kRows + 3) / 4;
  const uint8_t* scale_bases[kBases];
  const uint8_t* sum_bases[kBases];
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kBases; ++i) {
    scale_bases[i] = x + stride_bytes * (4 * i) + k;
    sum_bases[i] = scale_bases[i] + size_t{4} * (k / kActivationBlock);
  }
  BlockSums buffers[2];
  F32x16 sums[kRows];
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kRows; ++i) {
    sums[i] = Zero();
  }
  ComputeBlock<kFull>(x, stride_bytes, expanded.codes, buffers[0]);
  for (uint32_t group = 0; group < num_groups; ++group) {
    if (group + 1 < num_groups) {
      ComputeBlock<kFull>(x + size_t{kGroup} * (group + 1),
                          stride_bytes,
                          expanded.codes + kGroupBytes * (group + 1),
                          buffers[(group + 1) % 2]);
    }
    const int32_t* dots = buffers[group % 2].values;
    const F32x16 scale = Load(expanded.scales + size_t{kPanelOutputs} * group);
    const F32x16 minimum =
        kHasMinimum ? Load(expanded.minima + size_t{kPanelOutputs} * group) : Zero();
    SPINDLE_UNROLL
    for (uint32_t i = 0; i < kRows; ++i) {
      const size_t offset = stride_bytes * (i % 4);
      const F32x16 dot = ToFloat(_mm512_load_si512(dots + size_t{kPanelOutputs} * i));
      const F32x16 row_scale = Splat(*reinterpret_cast<const float*>(scale_bases[i / 4] + offset));
      sums[i] = MulAdd(dot, Mul(scale, row_scale), sums[i]);
      if constexpr (kHasMinimum) {
        const F32x16 row_sum = Splat(*reinterpret_cast<const float*>(sum_bases[i / 4] + offset));
        sums[i] = MulAdd(minimum, row_sum, sums[i]);
      }
    }
    const size_t step = (group + 1) % kGroupsPerBlock == 0 ? 4 : 0;
    SPINDLE_UNROLL
    for (uint32_t i = 0; i < kBases; ++i) {
      scale_bases[i] += step;
      sum_bases[i] += step;
    }
  }
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kRows; ++i) {
    Store(finished[i], sums[i]);
  }
}

// The last rows.count % 16 rows.
template <uint32_t kGroup, bool kHasMinimum, uint32_t kRows>
void LastTiledRows(const TileRows& rows,
                   uint32_t num_rows,
                   uint32_t k,
                   const ExpandedPanel& expanded,
                   float (*finished)[kPanelOutputs]) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      const uint8_t* x = rows.x + rows.stride_bytes * (rows.count - num_rows);
      TiledRows<kGroup, kHasMinimum, kRows>(x, rows.stride_bytes, k, expanded, finished);
    } else {
      LastTiledRows<kGroup, kHasMinimum, kRows - 1>(rows, num_rows, k, expanded, finished);
    }
  }
}

// Panels that a tile of rows serves in turn; expanded they fit the second-level cache.
inline constexpr uint32_t kExpandedPanels = 8;

// All rows of some expanded panels. REQUIRES: ConfigureInt8Tiles(kGroup, rows.count % kAmxTileRows)
template <uint32_t kGroup, bool kHasMinimum>
void TiledPanels(const GemmArgs& args,
                 const TileRows& rows,
                 const ExpandedPanel* expanded,
                 PanelRange panels) {
  const uint32_t k = args.weights->num_inputs;
  alignas(64) float finished[kAmxTileRows][kPanelOutputs];
  for (uint32_t first = 0; first < rows.count; first += kAmxTileRows) {
    const uint32_t left = rows.count - first;
    const uint32_t num_rows = left < kAmxTileRows ? left : kAmxTileRows;
    const uint8_t* x = rows.x + rows.stride_bytes * first;
    for (uint32_t panel = panels.begin; panel < panels.end; ++panel) {
      const ExpandedPanel& weights = expanded[panel - panels.begin];
      if (num_rows == kAmxTileRows) {
        TiledRows<kGroup, kHasMinimum, kAmxTileRows>(x, rows.stride_bytes, k, weights, finished);
      } else {
        LastTiledRows<kGroup, kHasMinimum, kAmxTileRows - 1>(rows, num_rows, k, weights, finished);
      }
      StoreOutputs(args, rows.first + first, num_rows, panel, finished[0]);
    }
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
