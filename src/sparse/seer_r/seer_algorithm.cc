#include "sparse/seer_r/seer_algorithm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "kernels/codes.h"
#include "sparse/fixed_partitions.h"

namespace spindle::sparse {
namespace {

static_assert(SeerAlgorithm::kBlockTokens == kStripeTokens, "one block per stripe");

constexpr size_t kThresholdKnob = 1;
constexpr double kNoThreshold = 1;  // no share is larger

// How heads at `position` and behind were rotated.
kernels::HeadRotation RotationFrom(const tensor::AttentionSpec& spec, uint32_t position) {
  const tensor::RopeTable& rope = *spec.rope;
  const size_t at = position * size_t{rope.rope_dim / 2};
  return {.cos = rope.cos.data() + at,
          .sin = rope.sin.data() + at,
          .rope_dim = rope.rope_dim,
          .pairing = spec.pairing,
          .attention_factor = rope.attention_factor};
}

// Candidates that are attended whatever their scores say.
struct ForcedBlocks {
  bool first;  // block 0
  bool last;   // the row's own, just complete

  [[nodiscard]] uint32_t count() const { return (first ? 1U : 0U) + (last ? 1U : 0U); }
};

ForcedBlocks ForcedOf(const SelectJob& job, PartitionRange blocks) {
  const uint32_t complete = job.num_tokens() / SeerAlgorithm::kBlockTokens;
  const bool first = blocks.size() > 0 && blocks.begin == 0;
  const bool ends_here = job.num_tokens() % SeerAlgorithm::kBlockTokens == 0;
  const bool last = ends_here && blocks.end == complete && blocks.size() > (first ? 1U : 0U);
  return {first, last};
}

// Bits of the candidates whose share of the gate's softmax passes the threshold.
void ChooseAbove(float threshold, PartitionRange blocks, SelectWorkspace& workspace) {
  const auto count = static_cast<uint32_t>(workspace.scores.size());
  workspace.best.resize(count);
  workspace.kernels.reduce_scores({.scores = workspace.scores.data(),
                                   .num_queries = 1,
                                   .num_partitions = count,
                                   .scale = 1.0F,
                                   .reduction = kernels::GroupReduction::kSum,
                                   .out = workspace.best.data()});
  workspace.chosen.assign((blocks.size() + 63) / 64, 0);
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    const bool passes = workspace.best[blocks.begin + i] > threshold;
    workspace.chosen[i / 64] |= uint64_t{passes} << (i % 64);
  }
}

}  // namespace

SeerAlgorithm::SeerAlgorithm(SeerGates gates, uint32_t max_positions)
    : gates_(std::move(gates)), rotation_(gates_.rope_base, gates_.width, max_positions) {}

std::span<const Knob> SeerAlgorithm::knobs() const {
  static constexpr Knob kKnobs[] = {
      {"block_size", kBlockTokens, kBlockTokens, kBlockTokens},
      {"threshold", -1, kNoThreshold, kNoThreshold, /*is_integer=*/false}};
  return kKnobs;
}

uint32_t SeerAlgorithm::index_bytes(const kv::KvGeometry& /*geometry*/) const {
  return gates_.width * static_cast<uint32_t>(sizeof(uint16_t));
}

int SeerAlgorithm::BuildIndex(const IndexJob& job, const kernels::KernelTable& kernels) const {
  if (job.lane_end != kBlockTokens) {
    return kernels::kOk;
  }
  std::array<float, size_t{3} * kernels::kMaxHeadDim> pooled;
  if (const int code = kernels.pool_keys({.keys = job.keys,
                                          .num_lanes = kBlockTokens,
                                          .rotation = RotationFrom(*job.spec, job.first_position),
                                          .out = pooled.data()});
      code != kernels::kOk) {
    return code;
  }
  std::array<float, kernels::kMaxIndexDim> key;
  if (const int code =
          kernels.project({.x = pooled.data(),
                           .weights = gates_.KeyWeights(job.layer.value(), job.head.value()),
                           .num_inputs = 3 * gates_.head_dim,
                           .num_outputs = gates_.width,
                           .out = key.data()});
      code != kernels::kOk) {
    return code;
  }
  const std::span<float> vector = std::span(key).first(gates_.width);
  NormGateVector(gates_.layers[job.layer.value()].k_norm, vector);
  rotation_.Apply(job.first_position, vector);
  for (uint32_t i = 0; i < gates_.width; ++i) {
    const uint16_t half = kernels::FloatToBf16(vector[i]);
    std::memcpy(job.index + i * sizeof(half), &half, sizeof(half));
  }
  return kernels::kOk;
}

void SeerAlgorithm::ProjectQueries(const SelectJob& job, SelectWorkspace& workspace) const {
  const uint32_t width = gates_.width;
  workspace.query.resize(width + size_t{job.group} * job.head_dim);
  float* const query = workspace.query.data();
  const kernels::UnrotateArgs unrotate{.heads = job.q,
                                       .num_heads = job.group,
                                       .head_dim = job.head_dim,
                                       .rotation = RotationFrom(*job.spec, job.position),
                                       .out = query + width};
  SPINDLE_CHECK(workspace.kernels.unrotate(unrotate) == kernels::kOk);
  // Rows of a head's matrix follow those of the head before, so one product sums the group up.
  const kernels::ProjectArgs project{
      .x = query + width,
      .weights = gates_.QueryWeights(job.layer.value(), job.head.value()),
      .num_inputs = job.group * job.head_dim,
      .num_outputs = width,
      .out = query};
  SPINDLE_CHECK(workspace.kernels.project(project) == kernels::kOk);
  const std::span<float> vector(query, width);
  NormGateVector(gates_.layers[job.layer.value()].q_norm, vector);
  rotation_.Apply(job.position, vector);
  const float scale = 1.0F / std::sqrt(static_cast<float>(width));
  for (float& x : vector) {
    x *= scale;
  }
}

void SeerAlgorithm::ScoreBlocks(const SelectJob& job, SelectWorkspace& workspace) const {
  const uint32_t complete = job.num_tokens() / kBlockTokens;
  const bool has_open = job.num_tokens() % kBlockTokens != 0;
  workspace.scores.assign(complete + (has_open ? 1 : 0), 0.0F);
  const kernels::ScorePartitionsArgs args{.blobs = job.index.stripes.data(),
                                          .offset = job.index.offset,
                                          .vectors = {.count = 1, .dim = gates_.width},
                                          .first_partition = 0,
                                          .num_partitions = complete,
                                          .q = workspace.query.data(),
                                          .num_queries = 1,
                                          .scores = workspace.scores.data()};
  SPINDLE_CHECK(workspace.kernels.score_partitions(args) == kernels::kOk);
}

void SeerAlgorithm::Select(const SelectJob& job, SelectWorkspace& workspace, Selection* out) const {
  const PartitionRange blocks = CandidatesOf(job, kBlockTokens);
  const ForcedBlocks forced = ForcedOf(job, blocks);
  const double threshold = KnobOf(*job.settings, kThresholdKnob);
  const bool has_threshold = threshold < kNoThreshold;
  const uint32_t wanted =
      has_threshold
          ? (threshold < 0 ? blocks.size() : forced.count())
          : std::min(BudgetPartitions(job, kBlockTokens, blocks) + forced.count(), blocks.size());
  if (blocks.size() == 0 || (wanted == blocks.size() && !job.settings->always_ranks)) {
    WriteTiles(job, kBlockTokens, blocks, {}, &out->tiles);
    return;
  }
  ProjectQueries(job, workspace);
  ScoreBlocks(job, workspace);
  if (has_threshold) {
    ChooseAbove(static_cast<float>(threshold), blocks, workspace);
    const uint32_t last = blocks.size() - 1;
    workspace.chosen[0] |= uint64_t{forced.first};
    workspace.chosen[last / 64] |= uint64_t{forced.last} << (last % 64);
  } else {
    workspace.best.assign(workspace.scores.begin() + blocks.begin,
                          workspace.scores.begin() + blocks.end);
    constexpr float kFirst = std::numeric_limits<float>::infinity();
    workspace.best.front() = forced.first ? kFirst : workspace.best.front();
    workspace.best.back() = forced.last ? kFirst : workspace.best.back();
    ChooseBest(wanted, workspace);
  }
  WriteTiles(job, kBlockTokens, blocks, workspace.chosen, &out->tiles);
}

}  // namespace spindle::sparse
