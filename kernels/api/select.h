// Select stage of sparse attention: scores of partitions from their index vectors, one score per
// partition for the query heads that share a KV head, and the best of them.
// Thread-safety: pure functions over the caller's memory.
#pragma once

#include <cstdint>

#include "kernels/api/index_vectors.h"

namespace spindle::kernels {

// scores[i][j] = q_i · vector of partition first + j, in fp32, in an order fixed per table; of int8
// vectors, the products with the codes are summed up and then scaled. Queries stay fp32, so that
// a bound stays one. The index of a context lies in blobs, one per stripe; partition p is vector
// p mod count of blob p div count.
struct ScorePartitionsArgs {
  const uint8_t* const* blobs;  // of the stripes, position order
  uint64_t offset;              // bytes from a blob's address to its vectors
  VectorBlock vectors;          // of each blob
  uint32_t first_partition;
  uint32_t num_partitions;  // > 0
  const float* q;           // [num_queries][vectors.dim]
  uint32_t num_queries;     // 1 … kMaxGroup
  float* scores;            // [num_queries][num_partitions]
};

// How the query heads of a group agree on one score per partition.
enum class GroupReduction : uint8_t {
  kMaxLog,  // max over heads of ln p
  kSum,     // Σ over heads of p, ascending
};

// p_i = softmax over partitions of scale · scores[i]. Logarithms keep the order of partitions whose
// p is too small for a float. A head whose scores are all -inf, or none a number, does not count.
struct ReduceScoresArgs {
  const float* scores;  // [num_queries][num_partitions]
  uint32_t num_queries;
  uint32_t num_partitions;  // > 0
  float scale;              // > 0
  GroupReduction reduction;
  float* out;  // [num_partitions]
};

// The k best of n scores: score descending, id ascending; NaN is never chosen.
struct SelectBestArgs {
  const float* scores;  // [n]
  uint32_t n;
  uint32_t k;        // ≤ n
  uint64_t* chosen;  // [⌈n / 64⌉] overwritten; bit j mod 64 of word j div 64: partition j
};

// The best of n scores (in the order of SelectBestArgs) as long as their weights fit into a budget:
// up to the first one that would exceed it. NaN is never chosen.
struct SelectWithinArgs {
  const float* scores;      // [n]
  const uint16_t* weights;  // [n]
  uint32_t n;
  uint64_t budget;
  uint64_t* chosen;  // [⌈n / 64⌉] overwritten
};

}  // namespace spindle::kernels
