// Which functions make up the table of each instruction set.
#include "kernels/tables.h"

#include "kernels/cpu/attention_plan.h"
#include "kernels/functions.h"

// The members of a table that the functions of namespace `isa` fill.
#define SPINDLE_WEIGHT_AND_ROW_KERNELS(isa)                                            \
  .packed_bytes = isa::PackedBytes, .row_format = isa::RowFormatOf, .pack = isa::Pack, \
  .gemm = isa::Gemm, .dequantize_row = isa::DequantizeRow, .norm_rows = isa::NormRows, \
  .prepare_rows = isa::PrepareRows, .swiglu_rows = isa::SwiGluRows, .embed_rows = isa::EmbedRows
#define SPINDLE_ATTENTION_KERNELS(isa)                                                          \
  .rope_append = isa::RopeAppend, .plan_attention = PlanAttention, .attention = isa::Attention, \
  .merge_attention = isa::MergeAttention
#define SPINDLE_LOGITS_KERNELS(isa) \
  .summarize = isa::Summarize, .top_k = isa::TopK, .collect_at_least = isa::CollectAtLeast

namespace spindle::kernels {

const KernelTable kReferenceTable = {.isa = Isa::kReference,
                                     .name = "reference",
                                     .family = 1,
                                     SPINDLE_WEIGHT_AND_ROW_KERNELS(reference),
                                     SPINDLE_ATTENTION_KERNELS(reference),
                                     SPINDLE_LOGITS_KERNELS(reference)};

const KernelTable kBaselineTable = {.isa = Isa::kBaseline,
                                    .name = "baseline",
                                    .family = 1,
                                    SPINDLE_WEIGHT_AND_ROW_KERNELS(baseline),
                                    SPINDLE_ATTENTION_KERNELS(baseline),
                                    SPINDLE_LOGITS_KERNELS(baseline)};

const KernelTable kAvx2Table = {.isa = Isa::kAvx2,
                                .name = "avx2",
                                .family = 1,
                                SPINDLE_WEIGHT_AND_ROW_KERNELS(avx2),
                                SPINDLE_ATTENTION_KERNELS(avx2),
                                SPINDLE_LOGITS_KERNELS(avx2)};

const KernelTable kAvx512Table = {.isa = Isa::kAvx512,
                                  .name = "avx512",
                                  .family = 1,
                                  SPINDLE_WEIGHT_AND_ROW_KERNELS(avx512),
                                  SPINDLE_ATTENTION_KERNELS(avx512),
                                  SPINDLE_LOGITS_KERNELS(avx512)};

const KernelTable kAmxTable = {.isa = Isa::kAmx,
                               .name = "amx",
                               .family = 1,
                               SPINDLE_WEIGHT_AND_ROW_KERNELS(amx),
                               SPINDLE_ATTENTION_KERNELS(amx),
                               SPINDLE_LOGITS_KERNELS(amx)};

}  // namespace spindle::kernels
