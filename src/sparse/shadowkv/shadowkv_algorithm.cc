#include "sparse/shadowkv/shadowkv_algorithm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/prefix_key.h"
#include "sparse/mass_estimate.h"

namespace spindle::sparse {
namespace {

constexpr uint32_t kChunksPerStripe = kStripeTokens / ShadowKvAlgorithm::kChunkTokens;
constexpr float kDeviationUnit = 32767.0F;
// Of a chunk with a key that is no number: an outlier before all others.
constexpr uint16_t kNoDeviation = std::numeric_limits<uint16_t>::max();

uint16_t DeviationOf(float least_cosine) {
  const float deviation = (1.0F - std::clamp(least_cosine, -1.0F, 1.0F)) * kDeviationUnit;
  return std::isnan(least_cosine) ? kNoDeviation : static_cast<uint16_t>(std::lround(deviation));
}

}  // namespace

kernels::VectorBlock ShadowKvAlgorithm::LandmarksOf(uint32_t head_dim) const {
  return {.type = index_type_, .count = kChunksPerStripe, .dim = head_dim};
}

// Deviations of the candidates into workspace.best.
void ShadowKvAlgorithm::ReadDeviations(const SelectJob& job,
                                       PartitionRange chunks,
                                       SelectWorkspace& workspace) const {
  const size_t deviations = kernels::BlockBytes(LandmarksOf(job.head_dim));
  workspace.best.resize(chunks.size());
  for (uint32_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    uint16_t deviation = 0;
    std::memcpy(&deviation,
                job.index.stripes[chunk / kChunksPerStripe] + job.index.offset + deviations +
                    chunk % kChunksPerStripe * sizeof(deviation),
                sizeof(deviation));
    workspace.best[chunk - chunks.begin] = deviation;
  }
}

uint32_t ShadowKvAlgorithm::index_bytes(const kv::KvGeometry& geometry) const {
  return static_cast<uint32_t>(kernels::BlockBytes(LandmarksOf(geometry.head_dim)) +
                               kChunksPerStripe * sizeof(uint16_t));
}

int ShadowKvAlgorithm::BuildIndex(const IndexJob& job, const kernels::KernelTable& kernels) const {
  const kernels::VectorBlock landmarks = LandmarksOf(job.keys.head_dim);
  for (uint32_t chunk = job.lane_begin / kChunkTokens; chunk < job.lane_end / kChunkTokens;
       ++chunk) {
    float least_cosine = 0;
    const int code = kernels.key_mean({
        .keys = job.keys,
        .first_lane = chunk * kChunkTokens,
        .num_lanes = kChunkTokens,
        .mean = {.block = landmarks, .data = job.index, .idx = chunk},
        .least_cosine = &least_cosine,
    });
    if (code != kernels::kOk) {
      return code;
    }
    const uint16_t deviation = DeviationOf(least_cosine);
    std::memcpy(job.index + kernels::BlockBytes(landmarks) + chunk * sizeof(deviation),
                &deviation,
                sizeof(deviation));
  }
  return kernels::kOk;
}

void ShadowKvAlgorithm::Select(const SelectJob& job,
                               SelectWorkspace& workspace,
                               Selection* out) const {
  out->mass = job.keys == nullptr ? Selection::kNoEstimate : 1;  // of everything
  const SparseSettings& settings = *job.settings;
  const PartitionRange chunks = CandidatesOf(job, kChunkTokens);
  const uint32_t num_outliers =
      std::min(static_cast<uint32_t>(KnobOf(settings, kOutlierChunksKnob)), chunks.size());
  const uint32_t wanted =
      std::min(BudgetPartitions(job, kChunkTokens, chunks), chunks.size() - num_outliers);
  const bool covers = job.keys != nullptr && settings.top_p_mass > 0;
  const bool takes_all = wanted + num_outliers == chunks.size() && !covers;
  if (chunks.size() == 0 || (takes_all && !settings.always_ranks)) {
    WriteTiles(job, kChunkTokens, chunks, {}, &out->tiles);
    return;
  }
  ReadDeviations(job, chunks, workspace);
  ChooseBest(num_outliers, workspace);
  workspace.kept = workspace.chosen;

  workspace.query.assign(job.q, job.q + size_t{job.group} * job.head_dim);
  ScoreCandidates(job, chunks, LandmarksOf(job.head_dim), workspace);
  // Outliers are taken already: the softmax is over the others.
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    if ((workspace.kept[i / 64] >> (i % 64) & 1U) != 0) {
      for (uint32_t head = 0; head < job.group; ++head) {
        workspace.scores[size_t{head} * chunks.size() + i] =
            -std::numeric_limits<float>::infinity();
      }
    }
  }
  ReduceOverGroup(job, kernels::GroupReduction::kMaxLog, workspace);
  if (job.keys == nullptr) {
    ChooseBest(wanted, workspace);
  } else {
    workspace.always.clear();
    WriteTiles(job, kChunkTokens, chunks, workspace.kept, &workspace.always);
    out->mass = ChooseWithMass(job, kChunkTokens, chunks, wanted, workspace);
  }
  for (size_t i = 0; i < workspace.chosen.size(); ++i) {
    workspace.chosen[i] |= workspace.kept[i];
  }
  WriteTiles(job, kChunkTokens, chunks, workspace.chosen, &out->tiles);
}

}  // namespace spindle::sparse
