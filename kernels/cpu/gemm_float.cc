// Products with fp32 weights (exact mode) and bf16 weights. One sum per (row, output), inputs
// ascending; only the number of rows and panels worked on together varies.
#include "kernels/cpu/gemm_parts.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

namespace {

// Sums in flight: enough to cover the latency of a multiply-add, few enough to stay in registers.
#if defined(__AVX512F__)
constexpr uint32_t kTileRows = 8;
constexpr uint32_t kTilePanels = 2;
#else
constexpr uint32_t kTileRows = 4;
constexpr uint32_t kTilePanels = 1;
#endif
// A single row takes more panels at once.
constexpr uint32_t kSingleRowPanels = 4;

struct F32Format {
  static constexpr uint32_t kStepInputs = 1;
  static constexpr size_t kRowStepBytes = 4;

  static SPINDLE_INLINE_MEMBER F32x16 Step(F32x16 sum, const uint8_t* weights, const uint8_t* x) {
    float value;
    __builtin_memcpy(&value, x, sizeof(value));
    return MulAdd(Load(reinterpret_cast<const float*>(weights)), Splat(value), sum);
  }
};

#if !defined(SPINDLE_KERNEL_TILES)
struct Bf16Format {
  static constexpr uint32_t kStepInputs = 2;
  static constexpr size_t kRowStepBytes = 4;

  static SPINDLE_INLINE_MEMBER F32x16 Step(F32x16 sum, const uint8_t* weights, const uint8_t* x) {
    return DotBf16Pair(sum, weights, x);
  }
};
#endif

template <typename Format, uint32_t kRows, uint32_t kPanels>
void Tile(const GemmArgs& args, size_t panel_bytes, uint32_t first, uint32_t panel) {
  const uint32_t num_steps =
      (args.weights->num_inputs + Format::kStepInputs - 1) / Format::kStepInputs;
  const auto* weights = static_cast<const uint8_t*>(args.weights->data) + panel_bytes * panel;
  const auto* x = static_cast<const uint8_t*>(args.x) + args.x_stride_bytes * first;
  F32x16 sums[kRows][kPanels];
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kRows * kPanels; ++i) {
    sums[i / kPanels][i % kPanels] = Zero();
  }
  for (size_t step = 0; step < num_steps; ++step) {
    SPINDLE_UNROLL
    for (uint32_t i = 0; i < kRows; ++i) {
      SPINDLE_UNROLL
      for (uint32_t j = 0; j < kPanels; ++j) {
        sums[i][j] = Format::Step(sums[i][j],
                                  weights + panel_bytes * j + layout::kGroupCodeBytes * step,
                                  x + args.x_stride_bytes * i + Format::kRowStepBytes * step);
      }
    }
  }
  alignas(64) float finished[kPanels][kRows][kPanelOutputs];
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kRows * kPanels; ++i) {
    Store(finished[i % kPanels][i / kPanels], sums[i / kPanels][i % kPanels]);
  }
  for (uint32_t j = 0; j < kPanels; ++j) {
    StoreOutputs(args, first, kRows, panel + j, finished[j][0]);
  }
}

template <typename Format, uint32_t kRows, uint32_t kPanels>
void TileOfRows(
    const GemmArgs& args, size_t panel_bytes, uint32_t first, uint32_t rows, uint32_t panel) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      Tile<Format, kRows, kPanels>(args, panel_bytes, first, panel);
    } else {
      TileOfRows<Format, kRows - 1, kPanels>(args, panel_bytes, first, rows, panel);
    }
  }
}

template <typename Format>
void Product(const GemmArgs& args, PanelRange panels) {
  const size_t panel_bytes =
      layout::PanelBytes(args.weights->source, args.weights->row_format, args.weights->num_inputs);
  if (args.num_rows == 1) {
    uint32_t panel = panels.begin;
    for (; panel + kSingleRowPanels <= panels.end; panel += kSingleRowPanels) {
      Tile<Format, 1, kSingleRowPanels>(args, panel_bytes, 0, panel);
    }
    for (; panel < panels.end; ++panel) {
      Tile<Format, 1, 1>(args, panel_bytes, 0, panel);
    }
    return;
  }
  const uint32_t block_rows = RowsPerBlock(args.x_stride_bytes);
  for (uint32_t block = 0; block < args.num_rows; block += block_rows) {
    const uint32_t end = args.num_rows - block < block_rows ? args.num_rows : block + block_rows;
    for (uint32_t panel = panels.begin; panel < panels.end; panel += kTilePanels) {
      for (uint32_t first = block; first < end; first += kTileRows) {
        const uint32_t rows = end - first < kTileRows ? end - first : kTileRows;
        if (panels.end - panel >= kTilePanels) {
          TileOfRows<Format, kTileRows, kTilePanels>(args, panel_bytes, first, rows, panel);
        } else {
          TileOfRows<Format, kTileRows, 1>(args, panel_bytes, first, rows, panel);
        }
      }
    }
  }
}

}  // namespace

int GemmFloat(const GemmArgs& args, PanelRange panels, Exec*) {
  if (args.weights->row_format == RowFormat::kF32) {
    Product<F32Format>(args, panels);
    return kOk;
  }
#if !defined(SPINDLE_KERNEL_TILES)
  Product<Bf16Format>(args, panels);
  return kOk;
#else
  return kUnsupported;  // bf16 rows come as columns
#endif
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
