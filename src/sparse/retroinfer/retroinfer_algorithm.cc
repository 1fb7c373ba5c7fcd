#include "sparse/retroinfer/retroinfer_algorithm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "base/status_macros.h"
#include "sparse/dense/dense_algorithm.h"
#include "sparse/fixed_partitions.h"
#include "sparse/mass_estimate.h"
#include "sparse/retroinfer/cluster_index.h"

namespace spindle::sparse {
namespace {

// Of the algorithm's knobs.
constexpr size_t kEstimatedShareKnob = 2;

constexpr auto kTokens = static_cast<uint32_t>(kSegmentTokens);
constexpr uint32_t kClusters = ClusterIndex::kClusters;
static_assert(kTokens == kernels::kMaxSegmentTokens &&
              kTokens / RetroInferAlgorithm::kClusterTokens == kClusters);

// Segments whose index is in use at the row: a function of its position, not of what happens to be
// built.
uint32_t CountSegments(const SelectJob& job) {
  const uint32_t recent =
      std::max(job.settings->recent_tokens, RetroInferAlgorithm::kLeastRecentTokens);
  const uint32_t num_tokens = job.num_tokens();
  return num_tokens > recent ? (num_tokens - recent) / kTokens : 0;
}

// Choice of clusters for one row. Bit j of word i: cluster j of segment i.
class ZoneChoice {
 public:
  ZoneChoice(const SelectJob& job,
             const ClusterIndex& layout,
             double estimated_share,
             uint32_t num_segments,
             SelectWorkspace& workspace)
      : job_(job),
        estimated_share_(estimated_share),
        layout_(layout),
        num_segments_(num_segments),
        num_places_(num_segments * kClusters),
        workspace_(workspace) {
    ReadSizes();
  }

  // Everything may be retrieved.
  [[nodiscard]] bool TakesAll() const {
    return std::accumulate(workspace_.sizes.begin(), workspace_.sizes.end(), uint64_t{0}) <=
           job_.budget_tokens;
  }

  void Choose(Selection* out) {
    Score();
    ReduceOverGroup(job_, kernels::GroupReduction::kSum, workspace_);
    DropEmpty();
    const uint32_t num_retrieved = job_.keys == nullptr ? RetrieveBest() : RetrieveWithMass(out);
    AppendClusters(out);
    Estimate(num_retrieved, out);
  }

 private:
  [[nodiscard]] const uint8_t* IndexOf(uint32_t segment) const {
    return job_.index.segments[segment] + job_.index.offset;
  }

  void ReadSizes() {
    workspace_.sizes.resize(num_places_);
    num_clusters_ = 0;
    for (uint32_t segment = 0; segment < num_segments_; ++segment) {
      const uint8_t* const index = IndexOf(segment);
      for (uint32_t i = 0; i < kClusters; ++i) {
        const auto size =
            static_cast<uint16_t>(layout_.Begin(index, i + 1) - layout_.Begin(index, i));
        workspace_.sizes[segment * kClusters + i] = size;
        num_clusters_ += size != 0 ? 1U : 0U;
      }
    }
  }

  void Score() {
    workspace_.query.assign(job_.q, job_.q + size_t{job_.group} * job_.head_dim);
    workspace_.scores.resize(size_t{job_.group} * num_places_);
    SPINDLE_CHECK(workspace_.kernels.score_partitions({.blobs = job_.index.segments.data(),
                                                       .offset = job_.index.offset,
                                                       .vectors = layout_.means(),
                                                       .first_partition = 0,
                                                       .num_partitions = num_places_,
                                                       .q = workspace_.query.data(),
                                                       .num_queries = job_.group,
                                                       .scores = workspace_.scores.data()}) ==
                  kernels::kOk);
    for (uint32_t i = 0; i < num_places_; ++i) {
      for (uint32_t head = 0; workspace_.sizes[i] == 0 && head < job_.group; ++head) {
        workspace_.scores[size_t{head} * num_places_ + i] = -std::numeric_limits<float>::infinity();
      }
    }
  }

  // Places without a cluster are no candidates, whatever is left of the budget.
  void DropEmpty() {
    for (uint32_t i = 0; i < num_places_; ++i) {
      if (workspace_.sizes[i] == 0) {
        workspace_.best[i] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

  // As many as the budget allows; returns their number.
  uint32_t RetrieveBest() {
    workspace_.chosen.resize(num_segments_);
    return workspace_.kernels.select_within({.scores = workspace_.best.data(),
                                             .weights = workspace_.sizes.data(),
                                             .n = num_places_,
                                             .budget = job_.budget_tokens,
                                             .chosen = workspace_.chosen.data()});
  }

  // The same, or as few as top_p_mass needs. The steady zone is in out->tiles.
  uint32_t RetrieveWithMass(Selection* out) {
    // Clusters are near their means: no sample.
    const MassEstimate estimate(job_, out->tiles, {}, workspace_);
    if (job_.settings->top_p_mass == 0) {
      const uint32_t num_retrieved = RetrieveBest();
      out->mass = estimate.ShareOf(workspace_.chosen);
      return num_retrieved;
    }
    out->mass = estimate.ChooseCovering(job_.settings->top_p_mass,
                                        {.most = job_.budget_tokens, .of_tokens = true});
    uint32_t num_retrieved = 0;
    for (const uint64_t chosen : workspace_.chosen) {
      num_retrieved += static_cast<uint32_t>(std::popcount(chosen));
    }
    return num_retrieved;
  }

  void AppendClusters(Selection* out) const {
    for (uint32_t segment = 0; segment < num_segments_; ++segment) {
      const uint8_t* const index = IndexOf(segment);
      const auto* const tokens = reinterpret_cast<const uint16_t*>(index + layout_.tokens_offset());
      for (uint64_t left = workspace_.chosen[segment]; left != 0; left &= left - 1) {
        const auto i = static_cast<uint32_t>(std::countr_zero(left));
        const uint16_t begin = layout_.Begin(index, i);
        out->clusters.push_back({.segment = segment,
                                 .id = static_cast<uint16_t>(i),
                                 .begin = begin,
                                 .count = workspace_.sizes[segment * kClusters + i],
                                 .tokens = tokens + begin});
      }
    }
  }

  // The clusters next in rank.
  void Estimate(uint32_t num_retrieved, Selection* out) {
    const auto wanted =
        static_cast<uint32_t>(std::lround(estimated_share_ * static_cast<double>(num_clusters_)));
    const uint32_t num_estimated = std::min(wanted, num_clusters_ - num_retrieved);
    if (num_estimated == 0) {
      return;
    }
    workspace_.kept = workspace_.chosen;
    ChooseBest(num_retrieved + num_estimated, workspace_);
    for (uint32_t segment = 0; segment < num_segments_; ++segment) {
      workspace_.chosen[segment] &= ~workspace_.kept[segment];
    }
    for (uint32_t i = 0; i < num_places_; ++i) {
      const bool is_estimated = (workspace_.chosen[i / kClusters] >> (i % kClusters) & 1U) != 0;
      out->estimated_tokens += is_estimated ? workspace_.sizes[i] : 0U;
    }
    out->estimate.resize(size_t{job_.group} * (job_.head_dim + 2));
    workspace_.kernels.estimate_clusters({
        .blobs = job_.index.segments.data(),
        .num_segments = num_segments_,
        .index_type = layout_.type,
        .value_offset = job_.index.offset + layout_.values_offset(),
        .begins_offset = job_.index.offset + layout_.begins_offset(),
        .chosen = workspace_.chosen.data(),
        .scores = workspace_.scores.data(),
        .num_queries = job_.group,
        .head_dim = job_.head_dim,
        .scale = job_.scale,
        .softcap = job_.softcap,
        .states = out->estimate.data(),
    });
  }

  const SelectJob& job_;
  const double estimated_share_;  // of clusters
  const ClusterIndex layout_;
  const uint32_t num_segments_;
  const uint32_t num_places_;  // of clusters, taken or not
  SelectWorkspace& workspace_;
  uint32_t num_clusters_ = 0;
};

}  // namespace

// More would be in clusters as well.
absl::Status RetroInferAlgorithm::CheckSettings(const SparseSettings& settings) const {
  if (settings.sink_tokens <= kSinkTokens) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("sink_tokens must be at most " + std::to_string(kSinkTokens) +
                                    " with retroinfer, got " +
                                    std::to_string(settings.sink_tokens));
}

std::span<const Knob> RetroInferAlgorithm::knobs() const {
  static constexpr Knob kKnobs[] = {
      {"tokens_per_cluster", kClusterTokens, kClusterTokens, kClusterTokens},
      {"segment_tokens", kTokens, kTokens, kTokens},
      {"estimation_fraction", 0, 1, kEstimatedShare, false},
  };
  return kKnobs;
}

uint32_t RetroInferAlgorithm::index_bytes(const kv::KvGeometry& geometry) const {
  return static_cast<uint32_t>(ClusterIndex{geometry.head_dim, index_type_}.bytes());
}

int RetroInferAlgorithm::BuildSegment(const SegmentJob& job, BuildWorkspace& workspace) const {
  const ClusterIndex layout{job.geometry->head_dim, index_type_};
  const uint32_t first = job.segment == 0 ? kSinkTokens : 0;
  const uint32_t num_tokens = kTokens - first;
  const uint32_t num_clusters = num_tokens / kClusterTokens;
  workspace.keys.clear();
  workspace.values.clear();
  for (uint32_t token = first; token < kTokens; ++token) {
    workspace.keys.push_back(job.KeyOf(token));
    workspace.values.push_back(workspace.keys.back() + job.geometry->v_offset());
  }
  workspace.scratch.resize(kernels::ClusterScratchFloats(num_tokens, layout.head_dim));
  std::memset(job.index, 0, layout.bytes());
  auto* const begins = reinterpret_cast<uint16_t*>(job.index + layout.begins_offset());
  auto* const tokens = reinterpret_cast<uint16_t*>(job.index + layout.tokens_offset());
  uint32_t num_found = 0;
  const int code = workspace.kernels.cluster_keys({
      .k = workspace.keys.data(),
      .v = workspace.values.data(),
      .num_tokens = num_tokens,
      .num_clusters = num_clusters,
      .head_dim = layout.head_dim,
      .type = job.geometry->type,
      .iterations = kIterations,
      .scratch = workspace.scratch.data(),
      .index_type = layout.type,
      .key_means = job.index,
      .value_means = job.index + layout.values_offset(),
      .begins = begins,
      .tokens = tokens,
      .num_non_empty = &num_found,
  });
  std::fill(begins + num_clusters + 1, begins + kClusters + 1, begins[num_clusters]);
  for (uint32_t i = 0; i < num_tokens; ++i) {
    tokens[i] = static_cast<uint16_t>(tokens[i] + first);
  }
  return code;
}

void RetroInferAlgorithm::Select(const SelectJob& job,
                                 SelectWorkspace& workspace,
                                 Selection* out) const {
  out->mass = job.keys == nullptr ? Selection::kNoEstimate : 1;  // of everything
  const uint32_t num_tokens = job.num_tokens();
  const uint32_t num_segments = CountSegments(job);
  if (num_segments == 0) {
    AppendAllTiles(num_tokens, &out->tiles);
    return;
  }
  ZoneChoice zones(job,
                   ClusterIndex{job.head_dim, index_type_},
                   KnobOf(*job.settings, kEstimatedShareKnob),
                   num_segments,
                   workspace);
  const bool covers = job.keys != nullptr && job.settings->top_p_mass > 0;
  if (zones.TakesAll() && !covers && !job.settings->always_ranks) {
    AppendAllTiles(num_tokens, &out->tiles);
    return;
  }
  WriteSinkAndWindow(kSinkTokens, num_segments * kTokens, num_tokens, &out->tiles);
  zones.Choose(out);
}

}  // namespace spindle::sparse
