// Splits a range of work units into the panels of each product.
#include "kernels/cpu/gemm_parts.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

namespace {

int Product(const GemmArgs& args, PanelRange panels, Exec* exec) {
#if defined(SPINDLE_KERNEL_TILES)
  if (args.weights->row_format == RowFormat::kBf16Columns) {
    return GemmColumns(args, panels, exec);
  }
#else
  if (args.weights->row_format == RowFormat::kInt8) {
    return GemmInt8(args, panels, exec);
  }
#endif
  return GemmFloat(args, panels, exec);
}

}  // namespace

int Gemm(const GemmGroup& group, WorkRange units, Exec* exec) {
  uint32_t first = 0;
  for (uint32_t i = 0; i < group.num_parts; ++i) {
    const GemmArgs& args = group.parts[i];
    const uint32_t num_panels = NumPanels(args.weights->num_outputs);
    const uint32_t begin = units.begin > first ? units.begin - first : 0;
    const uint32_t end = units.end > first ? units.end - first : 0;
    const PanelRange panels{begin, end < num_panels ? end : num_panels};
    first += num_panels;
    if (panels.begin >= panels.end || args.num_rows == 0) {
      continue;
    }
    const int code = Product(args, panels, exec);
    if (code != kOk) {
      return code;
    }
  }
  return kOk;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
