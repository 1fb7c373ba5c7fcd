// Which functions make up the table of each instruction set.
#include "kernels/tables.h"

#include "kernels/cpu/attention_plan.h"
#include "kernels/functions.h"

namespace spindle::kernels {

namespace {

constexpr KernelTable Reference(Isa isa, std::string_view name) {
  return {.isa = isa,
          .name = name,
          .family = 1,
          .packed_bytes = reference::PackedBytes,
          .row_format = reference::RowFormatOf,
          .pack = reference::Pack,
          .gemm = reference::Gemm,
          .dequantize_row = reference::DequantizeRow,
          .norm_rows = reference::NormRows,
          .prepare_rows = reference::PrepareRows,
          .swiglu_rows = reference::SwiGluRows,
          .embed_rows = reference::EmbedRows,
          .rope_append = reference::RopeAppend,
          .plan_attention = PlanAttention,
          .attention = reference::Attention,
          .merge_attention = reference::MergeAttention,
          .summarize = reference::Summarize,
          .top_k = reference::TopK,
          .collect_at_least = reference::CollectAtLeast};
}

}  // namespace

const KernelTable kReferenceTable = Reference(Isa::kReference, "reference");
const KernelTable kBaselineTable = Reference(Isa::kBaseline, "baseline");
const KernelTable kAvx2Table = Reference(Isa::kAvx2, "avx2");
const KernelTable kAvx512Table = Reference(Isa::kAvx512, "avx512");
const KernelTable kAmxTable = Reference(Isa::kAmx, "amx");

}  // namespace spindle::kernels
