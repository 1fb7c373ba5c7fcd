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
#define SPINDLE_LRU_KERNELS(isa) .select_victims = isa::SelectVictims
#define SPINDLE_SPARSE_KERNELS(isa)                                               \
  .key_bounds = isa::KeyBounds, .key_mean = isa::KeyMean,                         \
  .score_partitions = isa::ScorePartitions, .reduce_scores = isa::ReduceScores,   \
  .select_best = isa::SelectBest, .select_within = isa::SelectWithin,             \
  .cluster_keys = isa::ClusterKeys, .estimate_clusters = isa::EstimateClusters,   \
  .pool_keys = isa::PoolKeys, .unrotate = isa::Unrotate, .project = isa::Project, \
  .block_mass = isa::BlockMass

namespace spindle::kernels {

#define SPINDLE_KERNEL_TABLE(isa_value, set, family_number)                  \
  static constexpr KernelTable table = {.isa = isa_value,                    \
                                        .name = #set,                        \
                                        .family = family_number,             \
                                        SPINDLE_WEIGHT_AND_ROW_KERNELS(set), \
                                        SPINDLE_ATTENTION_KERNELS(set),      \
                                        SPINDLE_LOGITS_KERNELS(set),         \
                                        SPINDLE_SPARSE_KERNELS(set),         \
                                        SPINDLE_LRU_KERNELS(set)};           \
  return &table

const KernelTable* BuiltTable(Isa isa) {
  switch (isa) {
    case Isa::kReference: {
      SPINDLE_KERNEL_TABLE(Isa::kReference, reference, 2);
    }
    case Isa::kBaseline: {
      SPINDLE_KERNEL_TABLE(Isa::kBaseline, baseline, 2);
    }
#if defined(SPINDLE_KERNELS_AVX2)
    case Isa::kAvx2: {
      SPINDLE_KERNEL_TABLE(Isa::kAvx2, avx2, 2);
    }
#endif
#if defined(SPINDLE_KERNELS_AVX512)
    case Isa::kAvx512: {
      SPINDLE_KERNEL_TABLE(Isa::kAvx512, avx512, 2);
    }
#endif
#if defined(SPINDLE_KERNELS_AMX)
    case Isa::kAmx: {
      SPINDLE_KERNEL_TABLE(Isa::kAmx, amx, 2);
    }
#endif
    default:
      return nullptr;
  }
}

}  // namespace spindle::kernels
