// Products of quantised weights with int8 rows. Per block of 32 (or 16) inputs the int32 sum over
// both planes is exact, then
//   sum = fma(float(dot), weight scale · row scale, sum);  sum = fma(weight minimum, row sum, sum)
// in ascending blocks, the same operations in every path, so that they agree bit for bit.
#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/weight_source.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

namespace {

// Rows that a panel is multiplied with at a time; as many sums as the registers hold. For more rows
// it is read and unpacked again, from the first or second cache: that costs less than to write an
// unpacked copy and to read its twice as many bytes.
#if defined(__AVX512VNNI__)
constexpr uint32_t kTileRows = 8;
#else
constexpr uint32_t kTileRows = 4;
#endif

// Rows [first, first + count) of a product, count ≤ row block.
struct RowBlock {
  const uint8_t* x;  // row 0 of the block
  size_t stride_bytes;
  uint32_t first;
  uint32_t count;
  const int32_t* corrections;  // [count][k / group]: -zero · Σ codes of the group, where needed
};

template <typename Source, uint32_t kRows>
SPINDLE_INLINE void RowTile(const Source& source,
                            const RowBlock& rows,
                            uint32_t first,
                            uint32_t k,
                            float (*finished)[kPanelOutputs]) {
  constexpr uint32_t kGroup = Source::kGroup;
  constexpr uint32_t kGroupsPerBlock = kActivationBlock / kGroup;
  const uint32_t num_blocks = k / kActivationBlock;
  const uint8_t* x = rows.x + rows.stride_bytes * first;
  const size_t correction_stride = k / kGroup;
  const int32_t* corrections =
      rows.corrections == nullptr ? nullptr : rows.corrections + correction_stride * first;
  F32x16 sums[kRows];
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kRows; ++i) {
    sums[i] = Zero();
  }
  for (uint32_t block = 0; block < num_blocks; ++block) {
    CodeVec codes[8];
    if (first == 0) {
      source.Prefetch(block);
    }
    source.Codes(block, codes);
    SPINDLE_UNROLL
    for (uint32_t part = 0; part < kGroupsPerBlock; ++part) {
      const uint32_t group = block * kGroupsPerBlock + part;
      const F32x16 scale = source.Scale(group);
      // Many rows: the low plane goes on with the sums of the high one, which saves registers. Few
      // rows: it has its own, so that it need not wait.
      constexpr bool kPlanesApart = kRows <= kMaxSplitRows;
      I32x16 high[kRows];
      I32x16 low[kRows];
      SPINDLE_UNROLL
      for (uint32_t i = 0; i < kRows; ++i) {
        high[i] = SplatInt(0);
        low[i] = SplatInt(0);
      }
      const CodeVec* const group_codes = codes + part * (kGroup / 4);
      BlockDots<Source::kMaxCode, kGroup / 4, kRows>(
          group_codes, x + size_t{kGroup} * group, rows.stride_bytes, high);
      SPINDLE_UNROLL
      for (uint32_t i = 0; i < kRows; ++i) {
        high[i] = TimesHighUnit(high[i]);
        if constexpr (Source::kCorrected) {
          high[i] = AddInt(high[i], SplatInt(corrections[correction_stride * i + group]));
        }
      }
      BlockDots<Source::kMaxCode, kGroup / 4, kRows>(group_codes,
                                                     x + k + size_t{kGroup} * group,
                                                     rows.stride_bytes,
                                                     kPlanesApart ? low : high);
      SPINDLE_UNROLL
      for (uint32_t i = 0; i < kRows; ++i) {
        const auto* row_scales =
            reinterpret_cast<const float*>(x + rows.stride_bytes * i + size_t{2} * k);
        const I32x16 dot = kPlanesApart ? AddInt(high[i], low[i]) : high[i];
        sums[i] = MulAdd(ToFloat(dot), Mul(scale, Splat(row_scales[block])), sums[i]);
      }
    }
    if constexpr (Source::kHasMinimum) {
      const F32x16 minimum = source.Minimum(block);
      SPINDLE_UNROLL
      for (uint32_t i = 0; i < kRows; ++i) {
        const auto* row_scales =
            reinterpret_cast<const float*>(x + rows.stride_bytes * i + size_t{2} * k);
        sums[i] = MulAdd(minimum, Splat(row_scales[num_blocks + block]), sums[i]);
      }
    }
  }
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kRows; ++i) {
    Store(finished[i], sums[i]);
  }
}

template <typename Source, uint32_t kRows>
void StoreTile(const Source& source,
               const GemmArgs& args,
               const RowBlock& rows,
               uint32_t first,
               uint32_t panel) {
  alignas(64) float finished[kRows][kPanelOutputs];
  RowTile<Source, kRows>(source, rows, first, args.weights->num_inputs, finished);
  StoreOutputs(args, rows.first + first, kRows, panel, finished[0]);
}

// A last tile of 1 … kRows rows.
template <typename Source, uint32_t kRows>
void StoreLastTile(const Source& source,
                   const GemmArgs& args,
                   const RowBlock& rows,
                   uint32_t first,
                   uint32_t panel) {
  if constexpr (kRows > 0) {
    if (rows.count - first == kRows) {
      StoreTile<Source, kRows>(source, args, rows, first, panel);
    } else {
      StoreLastTile<Source, kRows - 1>(source, args, rows, first, panel);
    }
  }
}

template <typename Source, uint32_t kRows>
void PanelProduct(const Source& source,
                  const GemmArgs& args,
                  const RowBlock& rows,
                  uint32_t panel) {
  uint32_t first = 0;
  for (; first + kRows <= rows.count; first += kRows) {
    StoreTile<Source, kRows>(source, args, rows, first, panel);
  }
  StoreLastTile<Source, kRows - 1>(source, args, rows, first, panel);
}

// corrections[row][group] = -zero · Σ codes.
template <typename Source>
void ComputeCorrections(const RowBlock& rows, uint32_t k, int32_t zero, int32_t* corrections) {
  for (uint32_t row = 0; row < rows.count; ++row) {
    const auto* high = reinterpret_cast<const int8_t*>(rows.x + rows.stride_bytes * row);
    for (uint32_t group = 0; group < k / Source::kGroup; ++group) {
      int32_t sum = 0;
      for (uint32_t i = 0; i < Source::kGroup; ++i) {
        const size_t at = size_t{Source::kGroup} * group + i;
        sum += kInt8HighUnit * high[at] + high[k + at];
      }
      *corrections++ = -zero * sum;
    }
  }
}

template <DType kType>
int RowBlockProduct(const GemmArgs& args, RowBlock rows, PanelRange panels, Exec* exec) {
  using Packed = PackedSource<kType>;
  const uint32_t k = args.weights->num_inputs;
  ScratchCursor scratch(*exec);
  if constexpr (Packed::kCorrected) {
    auto* corrections =
        reinterpret_cast<int32_t*>(scratch.Take(size_t{4} * rows.count * (k / Packed::kGroup)));
    if (corrections == nullptr) {
      return kScratchTooSmall;
    }
    ComputeCorrections<Packed>(rows, k, ZeroCode(kType), corrections);
    rows.corrections = corrections;
  }
  const auto* packed = static_cast<const uint8_t*>(args.weights->data);
  const size_t panel_bytes = layout::PanelBytes(kType, RowFormat::kInt8, k);
  for (uint32_t panel = panels.begin; panel < panels.end; ++panel) {
    PanelProduct<Packed, kTileRows>(Packed(packed + panel_bytes * panel, k), args, rows, panel);
  }
  return kOk;
}

template <DType kType>
int TypedProduct(const GemmArgs& args, PanelRange panels, Exec* exec) {
  const uint32_t block_rows = RowsPerBlock(args.x_stride_bytes);
  for (uint32_t first = 0; first < args.num_rows; first += block_rows) {
    const uint32_t left = args.num_rows - first;
    const RowBlock rows{.x = static_cast<const uint8_t*>(args.x) + args.x_stride_bytes * first,
                        .stride_bytes = args.x_stride_bytes,
                        .first = first,
                        .count = left < block_rows ? left : block_rows,
                        .corrections = nullptr};
    if (const int code = RowBlockProduct<kType>(args, rows, panels, exec); code != kOk) {
      return code;
    }
  }
  return kOk;
}

}  // namespace

int GemmInt8(const GemmArgs& args, PanelRange panels, Exec* exec) {
  return VisitQuantised(args.weights->source, [&](auto type) {
    return TypedProduct<decltype(type)::value>(args, panels, exec);
  });
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
