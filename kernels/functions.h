// Declares the functions of one implementation in its own namespace; see KernelTable for what each
// does. Thread-safety: pure functions.
#pragma once

#include <cstdint>

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

// A macro because the same declarations are needed once per instruction set.
#define SPINDLE_DECLARE_WEIGHT_AND_ROW_KERNELS(isa)                                     \
  namespace spindle::kernels::isa {                                                     \
  uint64_t PackedBytes(DType type, uint32_t num_outputs, uint32_t k, ComputeMode mode); \
  RowFormat RowFormatOf(DType type, ComputeMode mode);                                  \
  int Pack(DType type,                                                                  \
           const void* source_rows,                                                     \
           ComputeMode mode,                                                            \
           uint32_t num_outputs,                                                        \
           uint32_t k,                                                                  \
           void* packed,                                                                \
           WorkRange panels);                                                           \
  int Gemm(const GemmGroup& group, WorkRange units, Exec* exec);                        \
  int DequantizeRow(DType type, const void* row, uint32_t k, float* out);               \
  int NormRows(const NormRowsArgs& args, WorkRange rows, Exec* exec);                   \
  int PrepareRows(const PrepareRowsArgs& args, WorkRange rows, Exec* exec);             \
  int SwiGluRows(const SwiGluRowsArgs& args, WorkRange rows, Exec* exec);               \
  int EmbedRows(const EmbedRowsArgs& args, WorkRange rows, Exec* exec);                 \
  }

#define SPINDLE_DECLARE_ATTENTION_KERNELS(isa)                            \
  namespace spindle::kernels::isa {                                       \
  int RopeAppend(const RopeAppendArgs& args, WorkRange rows, Exec* exec); \
  int Attention(const AttentionArgs& args,                                \
                const AttentionPlan& plan,                                \
                WorkRange units,                                          \
                Exec* exec);                                              \
  int MergeAttention(const AttentionArgs& args,                           \
                     const AttentionPlan& plan,                           \
                     WorkRange items,                                     \
                     Exec* exec);                                         \
  }

#define SPINDLE_DECLARE_LOGITS_KERNELS(isa)                                                    \
  namespace spindle::kernels::isa {                                                            \
  LogitSummary Summarize(const float* logits, uint32_t n);                                     \
  uint32_t TopK(                                                                               \
      const float* logits, uint32_t n, uint32_t k, ScoredToken* out, ScoredToken* scratch);    \
  uint32_t CollectAtLeast(const float* logits, uint32_t n, float threshold, ScoredToken* out); \
  }

#define SPINDLE_DECLARE_LRU_KERNELS(isa)                             \
  namespace spindle::kernels::isa {                                  \
  VictimResult SelectVictims(const VictimArgs& args, uint32_t* out); \
  }

#define SPINDLE_DECLARE_SPARSE_KERNELS(isa)             \
  namespace spindle::kernels::isa {                     \
  int KeyBounds(const KeyBoundsArgs& args);             \
  int KeyMean(const KeyMeanArgs& args);                 \
  int ScorePartitions(const ScorePartitionsArgs& args); \
  void ReduceScores(const ReduceScoresArgs& args);      \
  uint32_t SelectBest(const SelectBestArgs& args);      \
  uint32_t SelectWithin(const SelectWithinArgs& args);  \
  int ClusterKeys(const ClusterArgs& args);             \
  void EstimateClusters(const EstimateArgs& args);      \
  int PoolKeys(const PoolKeysArgs& args);               \
  int Unrotate(const UnrotateArgs& args);               \
  int Project(const ProjectArgs& args);                 \
  int BlockMass(const BlockMassArgs& args, Exec* exec); \
  }

SPINDLE_DECLARE_WEIGHT_AND_ROW_KERNELS(reference)
SPINDLE_DECLARE_WEIGHT_AND_ROW_KERNELS(baseline)
SPINDLE_DECLARE_WEIGHT_AND_ROW_KERNELS(avx2)
SPINDLE_DECLARE_WEIGHT_AND_ROW_KERNELS(avx512)
SPINDLE_DECLARE_WEIGHT_AND_ROW_KERNELS(amx)
SPINDLE_DECLARE_ATTENTION_KERNELS(reference)
SPINDLE_DECLARE_ATTENTION_KERNELS(baseline)
SPINDLE_DECLARE_ATTENTION_KERNELS(avx2)
SPINDLE_DECLARE_ATTENTION_KERNELS(avx512)
SPINDLE_DECLARE_ATTENTION_KERNELS(amx)
SPINDLE_DECLARE_LOGITS_KERNELS(reference)
SPINDLE_DECLARE_LOGITS_KERNELS(baseline)
SPINDLE_DECLARE_LOGITS_KERNELS(avx2)
SPINDLE_DECLARE_LOGITS_KERNELS(avx512)
SPINDLE_DECLARE_LOGITS_KERNELS(amx)
SPINDLE_DECLARE_LRU_KERNELS(reference)
SPINDLE_DECLARE_LRU_KERNELS(baseline)
SPINDLE_DECLARE_LRU_KERNELS(avx2)
SPINDLE_DECLARE_LRU_KERNELS(avx512)
SPINDLE_DECLARE_LRU_KERNELS(amx)
SPINDLE_DECLARE_SPARSE_KERNELS(reference)
SPINDLE_DECLARE_SPARSE_KERNELS(baseline)
SPINDLE_DECLARE_SPARSE_KERNELS(avx2)
SPINDLE_DECLARE_SPARSE_KERNELS(avx512)
SPINDLE_DECLARE_SPARSE_KERNELS(amx)
