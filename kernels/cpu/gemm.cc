// Splits a range of work units into the panels of each product.
#include "kernels/cpu/gemm_parts.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

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
    const int code = args.weights->row_format == RowFormat::kInt8 ? GemmInt8(args, panels, exec)
                                                                  : GemmFloat(args, panels, exec);
    if (code != kOk) {
      return code;
    }
  }
  return kOk;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
