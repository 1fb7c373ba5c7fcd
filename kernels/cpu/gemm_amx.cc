// Products in AMX tiles of bf16: Yᵀ = W · Xᵀ, 16 outputs × 16 rows per tile, 32 inputs at a time.
// Quantised weights are dequantised to bf16 tiles on the way, so that nothing remains to be scaled
// afterwards; for int8 tiles the scaling of each block would cost four times the product.
//
// Arithmetic of a (row, output), whatever the number of rows: TDPBF16PS over 32 inputs after the
// other (even and odd inputs are summed apart, then added to the sum so far).
#include <bit>

#include <immintrin.h>

#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/tile_source.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/transpose_avx512.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

namespace {

// Panels that a pair of row groups serves in turn; as tiles they fit the second-level cache.
constexpr uint32_t kExpandedPanels = 8;
// Panels of a product of one row group: the sums of one wait for each other, those of several do
// not.
constexpr uint32_t kFewRowsPanels = 3;
// How far ahead packed weights are asked for.
constexpr size_t kAheadBytes = 4096;

// Rows of x in the groups of kBf16Columns.
struct Columns {
  const uint8_t* x;
  size_t stride_bytes;
  uint32_t num_rows;
  uint32_t num_blocks;  // of 32 inputs

  [[nodiscard]] uint32_t RowsOf(uint32_t group) const {
    const uint32_t left = num_rows - group * kColumnGroupRows;
    return left < kColumnGroupRows ? left : kColumnGroupRows;
  }

  [[nodiscard]] const uint8_t* Group(uint32_t group) const {
    return x + stride_bytes * kColumnGroupRows * group;
  }
};

// One tile of sums: [output][row], each output in a cache line of its own.
struct alignas(64) TileSums {
  float values[kPanelOutputs][kColumnGroupRows];
};

// Hands a tile's sums on, row by row.
SPINDLE_INLINE void StoreSums(const GemmArgs& args,
                              const TileSums& sums,
                              uint32_t first_row,
                              uint32_t num_rows,
                              uint32_t panel) {
  const uint8_t* outputs[kPanelOutputs];
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kPanelOutputs; ++i) {
    outputs[i] = reinterpret_cast<const uint8_t*>(sums.values[i]);
  }
  __m512i rows[kColumnGroupRows];
  SPINDLE_UNROLL
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    TransposeChunk(outputs, chunk, rows + 4 * chunk);
  }
  alignas(64) float finished[kColumnGroupRows][kPanelOutputs];
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kColumnGroupRows; ++i) {
    _mm512_store_si512(finished[i], rows[i]);
  }
  StoreOutputs(args, first_row, num_rows, panel, finished[0]);
}

// Tiles: 0, 1 sums of the first row group for two panels, 2, 3 of the second; 4, 5 weights; 6, 7
// rows.
void ConfigureManyRows(uint32_t rows0, uint32_t rows1) {
  TileConfig config;
  config.Set(0, kPanelOutputs, 4 * rows0);
  config.Set(1, kPanelOutputs, 4 * rows0);
  config.Set(4, kPanelOutputs, 64);
  config.Set(5, kPanelOutputs, 64);
  config.Set(6, kActivationBlock / 2, 4 * rows0);
  if (rows1 > 0) {
    config.Set(2, kPanelOutputs, 4 * rows1);
    config.Set(3, kPanelOutputs, 4 * rows1);
    config.Set(7, kActivationBlock / 2, 4 * rows1);
  }
  LoadTileConfig(config);
}

// Up to two row groups × two panels.
struct TileBlock {
  const uint8_t* x0;
  const uint8_t* x1;
  uint32_t rows0;
  uint32_t rows1;
  const uint8_t* tiles0;
  const uint8_t* tiles1;
  uint32_t num_blocks;
};

template <bool kTwoGroups, bool kTwoPanels>
SPINDLE_INLINE void MultiplyTiles(const TileBlock& b, TileSums (*sums)[2]) {
  _tile_zero(0);
  if constexpr (kTwoPanels) {
    _tile_zero(1);
  }
  if constexpr (kTwoGroups) {
    _tile_zero(2);
    if constexpr (kTwoPanels) {
      _tile_zero(3);
    }
  }
  const size_t step0 = size_t{64} * b.rows0;
  const size_t step1 = size_t{64} * b.rows1;
  for (size_t block = 0; block < b.num_blocks; ++block) {
    _tile_loadd(4, b.tiles0 + layout::kTileBytes * block, 64);
    _tile_loadd(6, b.x0 + step0 * block, 4 * b.rows0);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoPanels) {
      _tile_loadd(5, b.tiles1 + layout::kTileBytes * block, 64);
      _tile_dpbf16ps(1, 5, 6);
    }
    if constexpr (kTwoGroups) {
      _tile_loadd(7, b.x1 + step1 * block, 4 * b.rows1);
      _tile_dpbf16ps(2, 4, 7);
      if constexpr (kTwoPanels) {
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, sums[0][0].values, 64);
  if constexpr (kTwoPanels) {
    _tile_stored(1, sums[0][1].values, 64);
  }
  if constexpr (kTwoGroups) {
    _tile_stored(2, sums[1][0].values, 64);
    if constexpr (kTwoPanels) {
      _tile_stored(3, sums[1][1].values, 64);
    }
  }
  TileFence();
}

// Row groups group and, if kTwoGroups, group + 1 by some panels whose tiles follow each other.
template <bool kTwoGroups>
void GroupsByPanels(const GemmArgs& args,
                    const Columns& columns,
                    uint32_t first_row,
                    uint32_t group,
                    const uint8_t* tiles,
                    PanelRange panels) {
  const size_t panel_bytes = layout::kTileBytes * columns.num_blocks;
  TileBlock b{.x0 = columns.Group(group),
              .x1 = kTwoGroups ? columns.Group(group + 1) : nullptr,
              .rows0 = columns.RowsOf(group),
              .rows1 = kTwoGroups ? columns.RowsOf(group + 1) : 0,
              .tiles0 = tiles,
              .tiles1 = tiles + panel_bytes,
              .num_blocks = columns.num_blocks};
  TileSums sums[2][2] = {};
  const uint32_t row = first_row + group * kColumnGroupRows;
  for (uint32_t panel = panels.begin; panel < panels.end; panel += 2) {
    const bool two_panels = panels.end - panel >= 2;
    if (two_panels) {
      MultiplyTiles<kTwoGroups, true>(b, sums);
    } else {
      MultiplyTiles<kTwoGroups, false>(b, sums);
    }
    for (uint32_t j = 0; j < (two_panels ? 2U : 1U); ++j) {
      StoreSums(args, sums[0][j], row, b.rows0, panel + j);
      if constexpr (kTwoGroups) {
        StoreSums(args, sums[1][j], row + kColumnGroupRows, b.rows1, panel + j);
      }
    }
    b.tiles0 += 2 * panel_bytes;
    b.tiles1 += 2 * panel_bytes;
  }
}

void RowsByPanels(const GemmArgs& args,
                  const Columns& columns,
                  uint32_t first_row,
                  const uint8_t* tiles,
                  PanelRange panels) {
  uint32_t group = 0;
  const uint32_t full_groups = columns.num_rows / kColumnGroupRows;
  if (full_groups >= 2) {
    ConfigureManyRows(kColumnGroupRows, kColumnGroupRows);
    for (; group + 2 <= full_groups; group += 2) {
      GroupsByPanels<true>(args, columns, first_row, group, tiles, panels);
    }
  }
  const uint32_t left = columns.num_rows - group * kColumnGroupRows;
  if (left > kColumnGroupRows) {
    ConfigureManyRows(kColumnGroupRows, left - kColumnGroupRows);
    GroupsByPanels<true>(args, columns, first_row, group, tiles, panels);
  } else if (left > 0) {
    ConfigureManyRows(left, 0);
    GroupsByPanels<false>(args, columns, first_row, group, tiles, panels);
  }
}

template <typename Source>
int ManyRows(const GemmArgs& args, PanelRange panels, size_t panel_bytes, Exec* exec) {
  const uint32_t k = args.weights->num_inputs;
  const auto* packed = static_cast<const uint8_t*>(args.weights->data);
  const uint32_t num_blocks = (k + kActivationBlock - 1) / kActivationBlock;
  const size_t tiles_bytes = layout::kTileBytes * num_blocks;
  auto* scratch = static_cast<uint8_t*>(exec->scratch);
  const size_t room = exec->scratch_bytes / tiles_bytes;
  const auto step = static_cast<uint32_t>(room < kExpandedPanels ? room : kExpandedPanels);
  if (step == 0) {
    return kScratchTooSmall;
  }
  const uint32_t block_rows = RowsPerBlock(args.x_stride_bytes);
  for (uint32_t first = 0; first < args.num_rows; first += block_rows) {
    const uint32_t left = args.num_rows - first;
    const Columns columns{static_cast<const uint8_t*>(args.x) + args.x_stride_bytes * first,
                          args.x_stride_bytes,
                          left < block_rows ? left : block_rows,
                          num_blocks};
    for (uint32_t panel = panels.begin; panel < panels.end; panel += step) {
      const uint32_t end = panels.end - panel < step ? panels.end : panel + step;
      const uint8_t* tiles = packed + panel_bytes * panel;
      if constexpr (Source::kExpanded) {
        for (uint32_t p = panel; p < end; ++p) {
          const Source source(packed + panel_bytes * p, k);
          for (uint32_t block = 0; block < num_blocks; ++block) {
            source.Expand(block,
                          kAheadBytes,
                          scratch + tiles_bytes * (p - panel) + layout::kTileBytes * block);
          }
        }
        tiles = scratch;
        TileFence();
      }
      RowsByPanels(args, columns, first, tiles, {panel, end});
    }
  }
  return kOk;
}

// Tiles: 0 … 3 sums of up to four panels; 4, 5 weights; 6 rows.
void ConfigureFewRows(uint32_t rows) {
  TileConfig config;
  for (int tile = 0; tile < 4; ++tile) {
    config.Set(tile, kPanelOutputs, 4 * rows);
  }
  config.Set(4, kPanelOutputs, 64);
  config.Set(5, kPanelOutputs, 64);
  config.Set(6, kActivationBlock / 2, 4 * rows);
  LoadTileConfig(config);
}

// Tile `block` of each panel. Expanded ones of the next block are written while this block is
// multiplied, so that they have left the store buffer when they are loaded.
template <typename Source, uint32_t kPanels>
class PanelTiles {
 public:
  PanelTiles(const GemmArgs& args, uint32_t panel, size_t panel_bytes, uint8_t* scratch)
      : scratch_(scratch), jump_bytes_((kPanels - 1) * panel_bytes), sources_{} {
    const auto* packed = static_cast<const uint8_t*>(args.weights->data) + panel_bytes * panel;
    for (uint32_t p = 0; p < kPanels; ++p) {
      sources_[p] = packed + panel_bytes * p;
    }
    k_ = args.weights->num_inputs;
  }

  SPINDLE_INLINE_MEMBER void Expand(uint32_t block, uint32_t num_blocks) const {
    if constexpr (Source::kExpanded) {
      // The panel after these follows where this one ends.
      constexpr uint32_t kAheadBlocks = 8;
      constexpr size_t kAhead = kAheadBlocks * layout::BlockCodeBytes(Source::kCodes);
      const size_t ahead = block + kAheadBlocks < num_blocks ? kAhead : kAhead + jump_bytes_;
      SPINDLE_UNROLL
      for (uint32_t p = 0; p < kPanels; ++p) {
        Source(sources_[p], k_).Expand(block, ahead, Place(block, p));
      }
    }
  }

  SPINDLE_INLINE_MEMBER const uint8_t* Tile(uint32_t block, uint32_t p) const {
    if constexpr (Source::kExpanded) {
      return Place(block, p);
    } else {
      return Source(sources_[p], k_).Tile(block, kAheadBytes);
    }
  }

 private:
  [[nodiscard]] uint8_t* Place(uint32_t block, uint32_t p) const {
    return scratch_ + layout::kTileBytes * (kPanels * (block % 2) + p);
  }

  uint8_t* scratch_;  // two blocks of each panel
  size_t jump_bytes_;
  uint32_t k_ = 0;
  const uint8_t* sources_[kPanels];
};

// One row group by kPanels panels.
template <typename Source, uint32_t kPanels>
void FewRowsTile(const GemmArgs& args, uint32_t panel, size_t panel_bytes, uint8_t* scratch) {
  const uint32_t num_rows = args.num_rows;
  const uint32_t num_blocks = (args.weights->num_inputs + kActivationBlock - 1) / kActivationBlock;
  const auto* x = static_cast<const uint8_t*>(args.x);
  const PanelTiles<Source, kPanels> tiles(args, panel, panel_bytes, scratch);
  _tile_zero(0);
  if constexpr (kPanels > 1) {
    _tile_zero(1);
  }
  if constexpr (kPanels > 2) {
    _tile_zero(2);
  }
  if constexpr (kPanels > 3) {
    _tile_zero(3);
  }
  tiles.Expand(0, num_blocks);
  for (uint32_t block = 0; block < num_blocks; ++block) {
    TileFence();
    if (block + 1 < num_blocks) {
      tiles.Expand(block + 1, num_blocks);
    }
    TileFence();
    _tile_loadd(6, x + size_t{64} * num_rows * block, 4 * num_rows);
    _tile_loadd(4, tiles.Tile(block, 0), 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels > 1) {
      _tile_loadd(5, tiles.Tile(block, 1), 64);
      _tile_dpbf16ps(1, 5, 6);
    }
    if constexpr (kPanels > 2) {
      _tile_loadd(4, tiles.Tile(block, 2), 64);
      _tile_dpbf16ps(2, 4, 6);
    }
    if constexpr (kPanels > 3) {
      _tile_loadd(5, tiles.Tile(block, 3), 64);
      _tile_dpbf16ps(3, 5, 6);
    }
  }
  // A single row's sums are one line, those of several are transposed.
  const size_t stride = num_rows == 1 ? 4 : 64;
  TileSums sums[kPanels] = {};
  _tile_stored(0, sums[0].values, stride);
  if constexpr (kPanels > 1) {
    _tile_stored(1, sums[1].values, stride);
  }
  if constexpr (kPanels > 2) {
    _tile_stored(2, sums[2].values, stride);
  }
  if constexpr (kPanels > 3) {
    _tile_stored(3, sums[3].values, stride);
  }
  TileFence();
  for (uint32_t p = 0; p < kPanels; ++p) {
    if (num_rows == 1) {
      StoreOutputs(args, 0, 1, panel + p, sums[p].values[0]);
    } else {
      StoreSums(args, sums[p], 0, num_rows, panel + p);
    }
  }
}

// A last 1 … kPanels panels.
template <typename Source, uint32_t kPanels>
void LastFewRowsTile(const GemmArgs& args,
                     PanelRange panels,
                     size_t panel_bytes,
                     uint8_t* scratch) {
  if constexpr (kPanels > 0) {
    if (panels.end - panels.begin == kPanels) {
      FewRowsTile<Source, kPanels>(args, panels.begin, panel_bytes, scratch);
    } else {
      LastFewRowsTile<Source, kPanels - 1>(args, panels, panel_bytes, scratch);
    }
  }
}

template <typename Source>
int FewRows(const GemmArgs& args, PanelRange panels, size_t panel_bytes, Exec* exec) {
  ScratchCursor cursor(*exec);
  uint8_t* scratch = cursor.Take(2 * kFewRowsPanels * layout::kTileBytes);
  if (scratch == nullptr) {
    return kScratchTooSmall;
  }
  ConfigureFewRows(args.num_rows);
  uint32_t panel = panels.begin;
  for (; panel + kFewRowsPanels <= panels.end; panel += kFewRowsPanels) {
    FewRowsTile<Source, kFewRowsPanels>(args, panel, panel_bytes, scratch);
  }
  LastFewRowsTile<Source, kFewRowsPanels - 1>(args, {panel, panels.end}, panel_bytes, scratch);
  return kOk;
}

template <typename Source>
int Product(const GemmArgs& args, PanelRange panels, Exec* exec) {
  const size_t panel_bytes =
      layout::PanelBytes(args.weights->source, RowFormat::kBf16Columns, args.weights->num_inputs);
  const int code = args.num_rows <= kColumnGroupRows
                       ? FewRows<Source>(args, panels, panel_bytes, exec)
                       : ManyRows<Source>(args, panels, panel_bytes, exec);
  ReleaseTiles();
  return code;
}

}  // namespace

int GemmColumns(const GemmArgs& args, PanelRange panels, Exec* exec) {
  if (!IsQuantised(args.weights->source)) {
    return Product<StoredTiles>(args, panels, exec);
  }
  return VisitQuantised(args.weights->source, [&](auto type) {
    return Product<CodeTiles<decltype(type)::value>>(args, panels, exec);
  });
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
