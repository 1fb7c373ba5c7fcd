#include "eval/baseline_algorithms.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "sampling/philox.h"
#include "sparse/fixed_partitions.h"

namespace spindle::eval {
namespace {

using sparse::PartitionRange;
using sparse::SelectJob;
using sparse::SelectWorkspace;

uint32_t CountLive(const sparse::Selection& selection) {
  uint32_t count = 0;
  for (const sparse::TileLive& tile : selection.tiles) {
    count += static_cast<uint32_t>(std::popcount(tile.live));
  }
  return count;
}

}  // namespace

OracleAlgorithm::OracleAlgorithm(const kv::KvGeometry& geometry,
                                 uint32_t partition_tokens,
                                 std::shared_ptr<const sparse::SparseAlgorithm> matched)
    : partition_tokens_(partition_tokens), index_(geometry, std::move(matched)) {}

uint32_t OracleAlgorithm::index_bytes(const kv::KvGeometry& /*geometry*/) const {
  return index_.bytes();
}

int OracleAlgorithm::BuildIndex(const sparse::IndexJob& job,
                                const kernels::KernelTable& kernels) const {
  return index_.Build(job, kernels);
}

uint32_t OracleAlgorithm::Wanted(const SelectJob& job,
                                 uint32_t first_candidate,
                                 uint32_t num_candidates,
                                 SelectWorkspace& workspace,
                                 sparse::Selection* scratch) const {
  const PartitionRange candidates{first_candidate, first_candidate + num_candidates};
  if (index_.inner() == nullptr) {
    return sparse::BudgetPartitions(job, partition_tokens_, candidates);
  }
  index_.inner()->Select(job, workspace, scratch);
  const uint32_t attended = CountLive(*scratch);
  workspace.chosen.assign((num_candidates + 63) / 64, 0);
  sparse::WriteTiles(job, partition_tokens_, candidates, workspace.chosen, &scratch->tiles);
  const uint32_t always = CountLive(*scratch);
  const uint32_t selected = attended > always ? attended - always : 0;
  return std::min((selected + partition_tokens_ - 1) / partition_tokens_, num_candidates);
}

void OracleAlgorithm::Select(const SelectJob& job,
                             SelectWorkspace& workspace,
                             sparse::Selection* out) const {
  const PartitionRange candidates = sparse::CandidatesOf(job, partition_tokens_);
  const uint32_t wanted =
      candidates.size() == 0 ? 0 : Wanted(job, candidates.begin, candidates.size(), workspace, out);
  out->mass = sparse::Selection::kNoEstimate;
  if (wanted == candidates.size()) {
    sparse::WriteTiles(job, partition_tokens_, candidates, {}, &out->tiles);
    return;
  }
  index_.ComputeMass(job, workspace);
  const uint32_t num_tokens = job.num_tokens();
  workspace.best.assign(candidates.size(), 0.0F);
  for (uint32_t head = 0; head < job.group; ++head) {
    const float* const mass = workspace.scores.data() + size_t{head} * num_tokens;
    for (uint32_t i = 0; i < candidates.size(); ++i) {
      const float* const begin = mass + size_t{candidates.begin + i} * partition_tokens_;
      workspace.best[i] += std::accumulate(begin, begin + partition_tokens_, 0.0F);
    }
  }
  sparse::ChooseBest(wanted, workspace);
  sparse::WriteTiles(job, partition_tokens_, candidates, workspace.chosen, &out->tiles);
}

void RandomAlgorithm::Select(const SelectJob& job,
                             SelectWorkspace& workspace,
                             sparse::Selection* out) const {
  out->mass = sparse::Selection::kNoEstimate;
  const PartitionRange candidates = sparse::CandidatesOf(job, partition_tokens_);
  const uint32_t wanted = sparse::BudgetPartitions(job, partition_tokens_, candidates);
  if (wanted == candidates.size()) {
    sparse::WriteTiles(job, partition_tokens_, candidates, {}, &out->tiles);
    return;
  }
  const uint32_t group = uint32_t{job.layer.value()} << 16U | job.head.value();
  workspace.best.resize(candidates.size());
  for (uint32_t i = 0; i < candidates.size(); ++i) {
    const uint64_t place = uint64_t{job.position} << 32U | i;
    workspace.best[i] = static_cast<float>(sampling::UniformAt(seed_, group, place));
  }
  sparse::ChooseBest(wanted, workspace);
  sparse::WriteTiles(job, partition_tokens_, candidates, workspace.chosen, &out->tiles);
}

}  // namespace spindle::eval
