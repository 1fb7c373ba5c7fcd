// What attention's buffers and indexes take at most, for those who add up memory before it is
// taken. Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "kv/kv_geometry.h"
#include "sparse/algorithm_set.h"
#include "sparse/sparse_policy.h"

namespace spindle::sparse {

// The largest step and the machine.
struct ScratchBounds {
  uint32_t num_q_heads;
  uint32_t max_rows;
  uint32_t max_selections;  // sequences, rows of generated tokens, sparse blocks of prompts
  uint32_t max_model_len;
  uint32_t num_workers;
};

[[nodiscard]] uint64_t ScratchBytes(const kv::KvGeometry& geometry, const ScratchBounds& bounds);

// The index that `policy` needs of a context: of its stripes, the open one too, or of its complete
// segments, once it chooses at all.
[[nodiscard]] uint64_t IndexBytes(const kv::KvGeometry& geometry,
                                  const SparsePolicy& policy,
                                  uint64_t num_tokens);

// That of a request: its prompt's once, and for each choice what comes behind. REQUIRES:
// prompt_tokens ≤ num_tokens
[[nodiscard]] uint64_t RequestIndexBytes(const kv::KvGeometry& geometry,
                                         const SparsePolicy& policy,
                                         uint64_t prompt_tokens,
                                         uint64_t num_tokens,
                                         uint32_t num_choices);

// Indexes of all stripes of a store, of every algorithm, and one kept choice of each: taken where
// requests use them.
[[nodiscard]] uint64_t AllIndexBytes(const kv::KvGeometry& geometry,
                                     uint64_t num_stripes,
                                     const AlgorithmSet& algorithms = {});

// Weights of all algorithms.
[[nodiscard]] uint64_t AllWeightBytes(const AlgorithmSet& algorithms);

}  // namespace spindle::sparse
