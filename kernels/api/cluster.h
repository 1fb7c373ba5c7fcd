// Clusters of keys (RetroInfer, arXiv 2505.02922): spherical k-means over the tokens of a segment,
// and attention estimated from what is known of clusters. Thread-safety: pure functions over the
// caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/api/index_vectors.h"

namespace spindle::kernels {

inline constexpr uint32_t kMaxSegmentClusters = 64;
inline constexpr uint32_t kMaxSegmentTokens = 1024;

// Vectors of a segment's index: one per place of a cluster.
[[nodiscard]] static constexpr VectorBlock ClusterVectors(IndexType type, uint32_t head_dim) {
  return {.type = type, .count = kMaxSegmentClusters, .dim = head_dim};
}

// Floats of scratch that clustering takes.
[[nodiscard]] static constexpr size_t ClusterScratchFloats(uint32_t num_tokens, uint32_t head_dim) {
  return (size_t{num_tokens} + 2 * kMaxSegmentClusters + 1) * head_dim;
}

// Groups tokens by the direction of their keys from the keys' mean μ. Centroids begin as the keys
// at evenly spaced places; `iterations` times every token goes to the centroid with the largest
// product (the first of equal ones), and between two times centroids become the unit vectors of
// their members' means; one without members stays. Empty clusters are dropped, the others keep
// their order. A function of the rows alone, the same in every run of a table.
struct ClusterArgs {
  const uint8_t* const* k;  // [num_tokens] rows of head_dim elements
  const uint8_t* const* v;  // [num_tokens]
  uint32_t num_tokens;      // 1 … kMaxSegmentTokens
  uint32_t num_clusters;    // wanted: 1 … min(num_tokens, kMaxSegmentClusters)
  uint32_t head_dim;        // multiple of 16 up to kMaxHeadDim
  DType type;               // kBF16 or kF32
  uint32_t iterations;      // > 0
  float* scratch;           // [ClusterScratchFloats]
  IndexType index_type;     // of the means
  // Results, of the clusters that have members.
  uint8_t* key_means;       // ClusterVectors: the exact means of members, rounded
  uint8_t* value_means;     // the same
  uint16_t* begins;         // [num_clusters + 1]: members of cluster i are tokens[begins[i] …)
  uint16_t* tokens;         // [num_tokens] ids of rows, ascending within a cluster
  uint32_t* num_non_empty;  // one number
};

// Attention over clusters as if every member had the mean key and the mean value: an
// AttentionItem's last span. Segments are tiles of the fold: their chosen clusters, ascending.
struct EstimateArgs {
  const uint8_t* const* blobs;  // [num_segments] indexes
  uint32_t num_segments;
  IndexType index_type;    // of value means
  uint64_t value_offset;   // bytes from a blob's address to value means, ClusterVectors
  uint64_t begins_offset;  // to begins [65] of uint16
  const uint64_t* chosen;  // [num_segments] bit j: cluster j
  const float* scores;     // [num_queries][num_segments · 64] q · mean key
  uint32_t num_queries;
  uint32_t head_dim;
  float scale;    // > 0
  float softcap;  // 0 = none, as in AttentionArgs
  float* states;  // [num_queries][head_dim + 2]: acc, m, l
};

}  // namespace spindle::kernels
