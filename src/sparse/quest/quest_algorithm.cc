#include "sparse/quest/quest_algorithm.h"

#include <algorithm>
#include <cmath>

#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "sparse/fixed_partitions.h"

namespace spindle::sparse {
namespace {

constexpr uint32_t kPagesPerStripe = kStripeTokens / QuestAlgorithm::kPageTokens;

enum QuestKnob : uint8_t { kPageTokensKnob, kBoundWeightKnob };

// With weight w a page scores q · centre + w · |q| · half-width of its keys, which is one product
// with the index vector [max | min]: q⁺ · max + q⁻ · min, the bound, at w = 1.
void WriteQuery(const SelectJob& job, float weight, std::vector<float>* query) {
  const uint32_t d = job.head_dim;
  query->resize(size_t{job.group} * 2 * d);
  for (uint32_t head = 0; head < job.group; ++head) {
    const float* const q = job.q + size_t{head} * d;
    float* const out = query->data() + size_t{head} * 2 * d;
    for (uint32_t i = 0; i < d; ++i) {
      const float spread = weight * std::abs(q[i]);
      out[i] = 0.5F * (q[i] + spread);
      out[d + i] = 0.5F * (q[i] - spread);
    }
  }
}

}  // namespace

std::span<const Knob> QuestAlgorithm::knobs() const {
  static constexpr Knob kKnobs[] = {
      {"page_tokens", kPageTokens, kPageTokens, kPageTokens},
      {"bound_weight", 0, 1, 1, false},
  };
  return kKnobs;
}

kernels::VectorBlock QuestAlgorithm::VectorsOf(uint32_t head_dim) const {
  return {.type = index_type_, .count = kPagesPerStripe, .dim = 2 * head_dim};
}

uint32_t QuestAlgorithm::index_bytes(const kv::KvGeometry& geometry) const {
  return static_cast<uint32_t>(kernels::BlockBytes(VectorsOf(geometry.head_dim)));
}

int QuestAlgorithm::BuildIndex(const IndexJob& job, const kernels::KernelTable& kernels) const {
  const uint32_t page_end = job.lane_end / kPageTokens;
  for (uint32_t page = job.lane_begin / kPageTokens; page < page_end; ++page) {
    const kernels::KeyBoundsArgs bounds{
        .keys = job.keys,
        .first_lane = page * kPageTokens,
        .num_lanes = kPageTokens,
        .out = {.block = VectorsOf(job.keys.head_dim), .data = job.index, .idx = page},
    };
    if (const int code = kernels.key_bounds(bounds); code != kernels::kOk) {
      return code;
    }
  }
  return kernels::kOk;
}

void QuestAlgorithm::Select(const SelectJob& job,
                            SelectWorkspace& workspace,
                            Selection* out) const {
  const PartitionRange pages = CandidatesOf(job, kPageTokens);
  const uint32_t wanted = BudgetPartitions(job, kPageTokens, pages);
  if (pages.size() == 0 || (wanted == pages.size() && !job.settings->always_ranks)) {
    WriteTiles(job, kPageTokens, pages, {}, &out->tiles);
    return;
  }
  WriteQuery(job, static_cast<float>(KnobOf(*job.settings, kBoundWeightKnob)), &workspace.query);
  ScoreCandidates(job, pages, VectorsOf(job.head_dim), workspace);
  ReduceOverGroup(job, kernels::GroupReduction::kMaxLog, workspace);
  ChooseBest(wanted, workspace);
  WriteTiles(job, kPageTokens, pages, workspace.chosen, &out->tiles);
}

}  // namespace spindle::sparse
