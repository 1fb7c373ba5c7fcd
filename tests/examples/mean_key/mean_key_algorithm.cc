#include "mean_key/mean_key_algorithm.h"

#include "base/prefix_key.h"
#include "sparse/fixed_partitions.h"

namespace spindle::sparse {
namespace {

kernels::VectorBlock VectorsOf(uint32_t head_dim) {
  return {.count = kStripeTokens / MeanKeyAlgorithm::kBlockTokens, .dim = head_dim};
}

}  // namespace

// One bf16 vector per block.
uint32_t MeanKeyAlgorithm::index_bytes(const kv::KvGeometry& geometry) const {
  return static_cast<uint32_t>(kernels::BlockBytes(VectorsOf(geometry.head_dim)));
}

// The blocks that end in (lane_begin, lane_end], from the keys as stored.
int MeanKeyAlgorithm::BuildIndex(const IndexJob& job, const kernels::KernelTable& kernels) const {
  for (uint32_t block = job.lane_begin / kBlockTokens; block < job.lane_end / kBlockTokens;
       ++block) {
    float least_cosine = 0;  // not needed here
    const int code = kernels.key_mean(
        {.keys = job.keys,
         .first_lane = block * kBlockTokens,
         .num_lanes = kBlockTokens,
         .mean = {.block = VectorsOf(job.keys.head_dim), .data = job.index, .idx = block},
         .least_cosine = &least_cosine});
    if (code != kernels::kOk) {
      return code;
    }
  }
  return kernels::kOk;
}

void MeanKeyAlgorithm::Select(const SelectJob& job,
                              SelectWorkspace& workspace,
                              Selection* out) const {
  // Complete blocks that are not attended anyway, and how many of them the token budget pays for.
  const PartitionRange blocks = CandidatesOf(job, kBlockTokens);
  const uint32_t wanted = BudgetPartitions(job, kBlockTokens, blocks);
  if (blocks.size() == 0 || (wanted == blocks.size() && !job.settings->always_ranks)) {
    WriteTiles(job, kBlockTokens, blocks, {}, &out->tiles);
    return;
  }
  workspace.query.assign(job.q, job.q + size_t{job.group} * job.head_dim);
  ScoreCandidates(job, blocks, VectorsOf(job.head_dim), workspace);
  ReduceOverGroup(job, kernels::GroupReduction::kMaxLog, workspace);
  ChooseBest(wanted, workspace);
  WriteTiles(job, kBlockTokens, blocks, workspace.chosen, &out->tiles);
}

}  // namespace spindle::sparse
