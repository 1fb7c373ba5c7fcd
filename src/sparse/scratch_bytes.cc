#include "sparse/scratch_bytes.h"

#include <algorithm>
#include <memory>

#include "kernels/api/attention.h"
#include "kernels/api/cluster.h"
#include "kernels/api/rope_append.h"
#include "sparse/prefill_method.h"
#include "sparse/sparse_algorithm.h"
#include "sparse/step_jobs.h"

namespace spindle::sparse {
namespace {

// Bounds of attention plans (kernels/cpu/attention_plan.cc): units above a share of all work are
// cut at spans, if they are whole items of at most a block of rows.
constexpr uint64_t kCutItemsPerWorker = 8;
constexpr uint64_t kMaxBlockRows = 64;
constexpr uint64_t kLeastPartitionTokens = 8;
// Buffers of tables double when they grow; large ones begin and end with a page.
constexpr uint64_t kGrowth = 2;
constexpr uint64_t kPageBytes = uint64_t{2} << 20;

// Of a stripe or a segment, all layers and heads.
uint64_t UnitIndexBytes(const kv::KvGeometry& geometry, const SparseAlgorithm& algorithm) {
  return uint64_t{algorithm.index_bytes(geometry)} * geometry.num_layers * geometry.num_kv_heads;
}

}  // namespace

uint64_t ScratchBytes(const kv::KvGeometry& geometry, const ScratchBounds& bounds) {
  const uint64_t group = bounds.num_q_heads / geometry.num_kv_heads;
  const uint64_t state_bytes = group * (geometry.head_dim + 2) * sizeof(float);
  const uint64_t queries =
      uint64_t{bounds.max_rows} * bounds.num_q_heads * geometry.head_dim * sizeof(float);

  const uint64_t spans = (uint64_t{bounds.max_model_len} + kSegmentTokens - 1) / kSegmentTokens;
  const uint64_t cut_items = std::min(kCutItemsPerWorker * bounds.num_workers,
                                      uint64_t{geometry.num_kv_heads} * bounds.max_selections);
  const uint64_t partials = spans > 1 ? cut_items * spans * kMaxBlockRows * state_bytes : 0;

  // Runs of all sequences once, and again for each head where a choice differs between heads.
  const uint64_t pages = uint64_t{bounds.max_model_len} / geometry.page_tokens() + 1;
  const uint64_t tiles = uint64_t{bounds.max_model_len} / kStripeTokens + 1;
  // A choice of clusters has as many runs as tokens.
  const uint64_t choice_runs = bounds.max_model_len * uint64_t{sizeof(kernels::KvRun)};
  const uint64_t clusters =
      (spans + 1) * kernels::kMaxSegmentClusters * uint64_t{sizeof(ClusterUse)};
  const uint64_t lists =
      bounds.max_selections *
      (pages * sizeof(kernels::KvRun) + tiles * sizeof(TileLive) +
       geometry.num_kv_heads * (choice_runs + clusters + tiles * sizeof(TileLive) + state_bytes));
  // A block of a prompt: all of its context, and a choice of it for each head.
  const uint64_t blocks = (uint64_t{bounds.max_rows} / kPrefillBlockTokens + 1) *
                          (pages * sizeof(kernels::KvRun) + tiles * sizeof(TileLive)) *
                          (1 + geometry.num_kv_heads);
  const uint64_t rows =
      uint64_t{bounds.max_rows} *
      (sizeof(int32_t) + sizeof(kernels::KvSlot) + sizeof(StepJob) +
       geometry.num_kv_heads * (sizeof(kernels::AttentionItem) + sizeof(kernels::AttentionUnit)));
  // A worker over the fast tier: its plan and the states of the rows it is at.
  const uint64_t workers = bounds.num_workers * (pages * 64 + bounds.max_rows * state_bytes);
  // Its choice: scores of the smallest partitions, for each head of a group and together, their
  // order and tokens, and the runs of what is attended in any case.
  const uint64_t partitions = uint64_t{bounds.max_model_len} / kLeastPartitionTokens + 1;
  const uint64_t choices = bounds.num_workers * ((group + 4) * partitions * sizeof(float) +
                                                 pages * sizeof(kernels::KvRun));
  // Clustering: the rows of a segment, centroids, sums and addresses.
  const uint64_t builds = bounds.num_workers * (kernels::ClusterScratchFloats(
                                                    kernels::kMaxSegmentTokens, geometry.head_dim) *
                                                    sizeof(float) +
                                                2 * kernels::kMaxSegmentTokens * sizeof(void*));
  return queries + partials + kGrowth * (lists + blocks + rows + choices) + workers + builds +
         3 * kPageBytes;
}

uint64_t IndexBytes(const kv::KvGeometry& geometry,
                    const SparsePolicy& policy,
                    uint64_t num_tokens) {
  const SparseAlgorithm& algorithm = policy.algorithm();
  uint64_t units = (num_tokens + kStripeTokens - 1) / kStripeTokens;
  if (algorithm.index_unit() == IndexUnit::kSegment) {
    units = policy.IsDenseAt(static_cast<uint32_t>(num_tokens)) ? 0 : num_tokens / kSegmentTokens;
  }
  return units * UnitIndexBytes(geometry, algorithm);
}

uint64_t RequestIndexBytes(const kv::KvGeometry& geometry,
                           const SparsePolicy& policy,
                           uint64_t prompt_tokens,
                           uint64_t num_tokens,
                           uint32_t num_choices) {
  const uint64_t shared = IndexBytes(geometry, policy, prompt_tokens);
  return shared + num_choices * (IndexBytes(geometry, policy, num_tokens) - shared);
}

uint64_t AllIndexBytes(const kv::KvGeometry& geometry,
                       uint64_t num_stripes,
                       const AlgorithmSet& algorithms) {
  uint64_t bytes = 0;
  for (const std::shared_ptr<const SparseAlgorithm>& algorithm : algorithms.all()) {
    const bool by_segment = algorithm->index_unit() == IndexUnit::kSegment;
    const uint64_t num_units =
        by_segment ? num_stripes / (kSegmentTokens / kStripeTokens) + 1 : num_stripes;
    bytes += num_units * UnitIndexBytes(geometry, *algorithm);
  }
  // Choices that sequences keep between steps.
  return bytes +
         uint64_t{sizeof(TileLive)} * geometry.num_layers * geometry.num_kv_heads * num_stripes;
}

uint64_t AllWeightBytes(const AlgorithmSet& algorithms) {
  uint64_t bytes = 0;
  for (const std::shared_ptr<const SparseAlgorithm>& algorithm : algorithms.all()) {
    bytes += algorithm->weight_bytes();
  }
  return bytes;
}

}  // namespace spindle::sparse
