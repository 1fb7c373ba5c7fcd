// Packing of weights into panels (layout.h), and the row functions that need no vectors.
#include "kernels/codes.h"
#include "kernels/cpu/layout.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

namespace {

using layout::CodeLayout;
using layout::ScaleKind;

#if defined(SPINDLE_KERNEL_TILES)
constexpr RowFormat kDefaultFormats[] = {RowFormat::kBf16Columns, RowFormat::kBf16Columns};
#else
constexpr RowFormat kDefaultFormats[] = {RowFormat::kBf16, RowFormat::kInt8};
#endif

// One output of one panel.
struct Target {
  uint8_t* panel;
  uint32_t output;  // within the panel
  uint32_t k;
};

void StoreU16(uint8_t* to, uint16_t value) {
  __builtin_memcpy(to, &value, sizeof(value));
}

// Codes of inputs [begin, begin + n), n a multiple of 32, in the order of kInt8.
void PlaceInGroups(const Target& target,
                   const CodeLayout& codes,
                   const uint8_t* from,
                   uint32_t begin,
                   uint32_t n) {
  uint8_t* out =
      target.panel + layout::ScaleBytes(codes.scale_kind, target.k) + size_t{4} * target.output;
  for (uint32_t i = 0; i < n; i += 4) {
    const size_t group = (begin + i) / 4;
    if (!codes.nibbles) {
      __builtin_memcpy(out + layout::kGroupCodeBytes * group, from + i, 4);
      continue;
    }
    uint8_t* bytes = out + layout::kGroupCodeBytes * (group / 8 * 4 + group % 4);
    const uint32_t shift = group % 8 < 4 ? 0 : 4;
    for (uint32_t j = 0; j < 4; ++j) {
      bytes[j] = static_cast<uint8_t>(bytes[j] | (from[i + j] << shift));
    }
  }
}

// The same in the order of kBf16Columns.
void PlaceInTiles(const Target& target,
                  const CodeLayout& codes,
                  const uint8_t* from,
                  uint32_t begin,
                  uint32_t n) {
  uint8_t* out = target.panel + layout::ScaleBytes(codes.scale_kind, target.k) +
                 layout::BlockCodeBytes(codes) * (begin / kActivationBlock);
  for (uint32_t i = 0; i < n; i += kActivationBlock, out += layout::BlockCodeBytes(codes)) {
    if (!codes.nibbles) {
      __builtin_memcpy(out + size_t{kActivationBlock} * target.output, from + i, kActivationBlock);
      continue;
    }
    uint8_t* bytes = out + layout::kGroupCodeBytes * (target.output / 4) + target.output % 4 / 2;
    const uint32_t shift = target.output % 2 == 0 ? 0 : 4;
    for (uint32_t j = 0; j < kActivationBlock; ++j) {
      bytes[2 * j] = static_cast<uint8_t>(bytes[2 * j] | (from[i + j] << shift));
    }
  }
}

void PlaceSuperMin(const Target& target, const uint8_t* block, uint32_t index) {
  uint8_t* out = target.panel + layout::kSuperMinBytes * index;
  StoreU16(out + 2 * target.output, LoadU16(block));
  StoreU16(out + layout::kHalfVectorBytes + 2 * target.output, LoadU16(block + 2));
  out += 2 * layout::kHalfVectorBytes + target.output;
  for (uint32_t sub = 0; sub < 8; ++sub) {
    out[2 * kPanelOutputs * sub] = SubScale(block + 4, sub, false);
    out[2 * kPanelOutputs * sub + kPanelOutputs] = SubScale(block + 4, sub, true);
  }
}

void PlaceSuper16(const Target& target, const uint8_t* block, uint32_t index) {
  uint8_t* out = target.panel + layout::kSuper16Bytes * index;
  StoreU16(out + 2 * target.output, LoadU16(block + 208));
  for (uint32_t sub = 0; sub < 16; ++sub) {
    out[layout::kHalfVectorBytes + kPanelOutputs * sub + target.output] = block[192 + sub];
  }
}

void PlaceScales(const Target& target, ScaleKind kind, const uint8_t* block, uint32_t index) {
  switch (kind) {
    case ScaleKind::kHalf:
      StoreU16(target.panel + layout::kHalfVectorBytes * index + 2 * target.output, LoadU16(block));
      break;
    case ScaleKind::kHalfMin: {
      uint8_t* out = target.panel + 2 * layout::kHalfVectorBytes * index + 2 * target.output;
      StoreU16(out, LoadU16(block));
      StoreU16(out + layout::kHalfVectorBytes, LoadU16(block + 2));
      break;
    }
    case ScaleKind::kSuperMin:
      PlaceSuperMin(target, block, index);
      break;
    case ScaleKind::kSuper16:
      PlaceSuper16(target, block, index);
      break;
  }
}

void PackCodes(DType type, RowFormat format, const uint8_t* row, const Target& target) {
  const DTypeInfo info = Describe(type);
  const CodeLayout codes = layout::CodeLayoutOf(type);
  uint8_t decoded[kSuperBlock];
  for (uint32_t i = 0; i < target.k / info.block_elements; ++i, row += info.block_bytes) {
    PlaceScales(target, codes.scale_kind, row, i);
    DecodeCodes(type, row, info.block_elements, decoded);
    const auto place = format == RowFormat::kInt8 ? PlaceInGroups : PlaceInTiles;
    place(target, codes, decoded, i * info.block_elements, info.block_elements);
  }
}

void PackFloat(DType type, RowFormat format, const uint8_t* row, const Target& target) {
  float values[kSuperBlock];
  for (uint32_t begin = 0; begin < target.k; begin += kSuperBlock) {
    const uint32_t count = target.k - begin < kSuperBlock ? target.k - begin : kSuperBlock;
    DequantizeElements(type, row + RowBytes(type, begin), count, values);
    for (uint32_t i = 0; i < count; ++i) {
      const size_t input = begin + i;
      if (format == RowFormat::kF32) {
        uint8_t* out = target.panel + 4 * (kPanelOutputs * input + target.output);
        __builtin_memcpy(out, &values[i], sizeof(float));
      } else if (format == RowFormat::kBf16) {
        uint8_t* out = target.panel + 4 * (kPanelOutputs * (input / 2) + target.output);
        StoreU16(out + 2 * (input % 2), FloatToBf16(values[i]));
      } else {
        uint8_t* out = target.panel + layout::kTileBytes * (input / kActivationBlock) +
                       size_t{2} * kActivationBlock * target.output;
        StoreU16(out + 2 * (input % kActivationBlock), FloatToBf16(values[i]));
      }
    }
  }
}

}  // namespace

RowFormat RowFormatOf(DType type, ComputeMode mode) {
  if (mode == ComputeMode::kExact) {
    return RowFormat::kF32;
  }
  return kDefaultFormats[IsQuantised(type) ? 1 : 0];
}

uint64_t PackedBytes(DType type, uint32_t num_outputs, uint32_t k, ComputeMode mode) {
  if (!ValidRowLength(type, k)) {
    return 0;
  }
  return uint64_t{NumPanels(num_outputs)} * layout::PanelBytes(type, RowFormatOf(type, mode), k);
}

int Pack(DType type,
         const void* source_rows,
         ComputeMode mode,
         uint32_t num_outputs,
         uint32_t k,
         void* packed,
         WorkRange panels) {
  if (!ValidRowLength(type, k)) {
    return kUnsupported;
  }
  if (panels.end > NumPanels(num_outputs)) {
    return kInvalidArgument;
  }
  const RowFormat format = RowFormatOf(type, mode);
  const size_t panel_bytes = layout::PanelBytes(type, format, k);
  for (uint32_t panel = panels.begin; panel < panels.end; ++panel) {
    auto* out = static_cast<uint8_t*>(packed) + panel_bytes * panel;
    __builtin_memset(out, 0, panel_bytes);
    for (uint32_t i = 0; i < kPanelOutputs && panel * kPanelOutputs + i < num_outputs; ++i) {
      const uint8_t* row = static_cast<const uint8_t*>(source_rows) +
                           RowBytes(type, k) * (panel * kPanelOutputs + i);
      const Target target{.panel = out, .output = i, .k = k};
      if (format != RowFormat::kF32 && IsQuantised(type)) {
        PackCodes(type, format, row, target);
      } else {
        PackFloat(type, format, row, target);
      }
    }
  }
  return kOk;
}

int DequantizeRow(DType type, const void* row, uint32_t k, float* out) {
  if (!ValidRowLength(type, k)) {
    return kUnsupported;
  }
  DequantizeElements(type, static_cast<const uint8_t*>(row), k, out);
  return kOk;
}

int EmbedRows(const EmbedRowsArgs& args, WorkRange rows, Exec*) {
  if (!ValidRowLength(args.type, args.k)) {
    return kUnsupported;
  }
  const size_t row_bytes = RowBytes(args.type, args.k);
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    const int32_t id = args.ids[row];
    if (id < 0 || static_cast<uint32_t>(id) >= args.table_rows) {
      return kInvalidArgument;
    }
    DequantizeElements(
        args.type,
        static_cast<const uint8_t*>(args.table) + row_bytes * static_cast<uint32_t>(id),
        args.k,
        args.out + args.out_stride * row);
  }
  return kOk;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
