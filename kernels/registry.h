// The kernels of one instruction set as a table of function pointers, chosen once at start.
// Thread-safety: the tables are constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "kernels/api/attention.h"
#include "kernels/api/block_mass.h"
#include "kernels/api/cluster.h"
#include "kernels/api/exec.h"
#include "kernels/api/gate.h"
#include "kernels/api/gemm.h"
#include "kernels/api/index.h"
#include "kernels/api/logits.h"
#include "kernels/api/lru.h"
#include "kernels/api/rope_append.h"
#include "kernels/api/rows.h"
#include "kernels/api/select.h"

namespace spindle::kernels {

// Ascending capability. Results differ in the last bits between families, so the family is part of
// fingerprints.
enum class Isa : uint8_t {
  kReference,  // plain loops, the oracle of the tests; slow
  kBaseline,   // portable x86-64
  kAvx2,       // AVX2, FMA, F16C
  kAvx512,     // AVX-512 F/BW/VL/DQ, VNNI, BF16
  kAmx,        // kAvx512 with AMX int8 and bf16 tiles
};

struct KernelTable {
  Isa isa;
  std::string_view name;  // "avx512" …; printed at start
  uint32_t family;        // bumped when results of this table may change; fingerprints carry both

  // Weights. `source_rows` are [num_outputs] rows of RowBytes(type, k) in the file's layout.
  // Units = panels. ERRORS: kUnsupported when k is no multiple of the type's block; packed_bytes
  // is 0 then.
  uint64_t (*packed_bytes)(DType type, uint32_t num_outputs, uint32_t k, ComputeMode mode);
  RowFormat (*row_format)(DType type, ComputeMode mode);
  int (*pack)(DType type,
              const void* source_rows,
              ComputeMode mode,
              uint32_t num_outputs,
              uint32_t k,
              void* packed,
              WorkRange panels);
  int (*gemm)(const GemmGroup& group, WorkRange units, Exec* exec);

  // Rows.
  int (*dequantize_row)(DType type, const void* row, uint32_t k, float* out);
  int (*norm_rows)(const NormRowsArgs& args, WorkRange rows, Exec* exec);
  int (*prepare_rows)(const PrepareRowsArgs& args, WorkRange rows, Exec* exec);
  int (*swiglu_rows)(const SwiGluRowsArgs& args, WorkRange rows, Exec* exec);
  int (*embed_rows)(const EmbedRowsArgs& args, WorkRange rows, Exec* exec);
  int (*rope_append)(const RopeAppendArgs& args, WorkRange rows, Exec* exec);

  // Attention: plan on one thread, run the units, then merge (merge units = items; cheap when
  // nothing was split).
  int (*plan_attention)(const AttentionArgs& args, uint32_t num_workers, AttentionPlan* plan);
  int (*attention)(const AttentionArgs& args,
                   const AttentionPlan& plan,
                   WorkRange units,
                   Exec* exec);
  int (*merge_attention)(const AttentionArgs& args,
                         const AttentionPlan& plan,
                         WorkRange items,
                         Exec* exec);

  // Logits.
  LogitSummary (*summarize)(const float* logits, uint32_t n);
  // Writes the k largest in (logit descending, id ascending) order; returns how many: min(k,
  // non-NaN entries). Cost: one pass over n plus O(k log k). REQUIRES: scratch of n ScoredToken.
  uint32_t (*top_k)(
      const float* logits, uint32_t n, uint32_t k, ScoredToken* out, ScoredToken* scratch);
  // Writes all entries with logit ≥ threshold, ids ascending; returns how many.
  uint32_t (*collect_at_least)(const float* logits, uint32_t n, float threshold, ScoredToken* out);

  // Sparse attention: what is remembered of keys, and which partitions a query wants. SelectBest
  // and SelectWithin return how many they chose.
  int (*key_bounds)(const KeyBoundsArgs& args);
  int (*key_mean)(const KeyMeanArgs& args);
  int (*score_partitions)(const ScorePartitionsArgs& args);
  void (*reduce_scores)(const ReduceScoresArgs& args);
  uint32_t (*select_best)(const SelectBestArgs& args);
  uint32_t (*select_within)(const SelectWithinArgs& args);
  int (*cluster_keys)(const ClusterArgs& args);
  void (*estimate_clusters)(const EstimateArgs& args);
  int (*pool_keys)(const PoolKeysArgs& args);
  int (*unrotate)(const UnrotateArgs& args);
  int (*project)(const ProjectArgs& args);

  // Sparse prefill: which blocks of keys a block of rows wants. ERRORS: kScratchTooSmall for
  // contexts above 750 Ki tokens.
  int (*block_mass)(const BlockMassArgs& args, Exec* exec);

  // Cache of the fast tier. REQUIRES: `out` has room for args.num_wanted slots. Equal in all
  // tables.
  VictimResult (*select_victims)(const VictimArgs& args, uint32_t* out);
};

// The table of an ISA, or null when this build or this CPU lacks it.
[[nodiscard]] const KernelTable* FindKernels(Isa isa);

// The best table this CPU runs. Never null.
[[nodiscard]] const KernelTable* BestKernels();

// By name: "auto", "reference", "baseline", "avx2", "avx512", "amx"; null when unknown or
// unavailable.
[[nodiscard]] const KernelTable* FindKernelsByName(std::string_view name);

}  // namespace spindle::kernels
