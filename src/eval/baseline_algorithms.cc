#include "eval/baseline_algorithms.h"

#include <algorithm>
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

void OracleAlgorithm::Select(const SelectJob& job,
                             SelectWorkspace& workspace,
                             sparse::Selection* out) const {
  const PartitionRange candidates = sparse::CandidatesOf(job, partition_tokens_);
  const uint32_t num_tokens = job.num_tokens();
  uint32_t wanted = sparse::BudgetPartitions(job, partition_tokens_, candidates);
  uint32_t target = 0;  // tokens to attend to at least
  if (index_.inner() != nullptr) {
    index_.inner()->Select(job, workspace, out);
    target = out->CountAttended();
    wanted = target < num_tokens ? 0 : candidates.size();
    out->Clear();
  }
  if (wanted == candidates.size()) {
    sparse::WriteTiles(job, partition_tokens_, candidates, {}, &out->tiles);
    return;
  }
  RankByMass(job, candidates, workspace);
  for (;;) {
    out->Clear();
    sparse::ChooseBest(wanted, workspace);
    sparse::WriteTiles(job, partition_tokens_, candidates, workspace.chosen, &out->tiles);
    const uint32_t attended = out->CountAttended();
    if (attended >= target) {
      return;
    }
    // Partitions that reach into the sink or the recent tokens add less than their size.
    const uint32_t missing = (target - attended + partition_tokens_ - 1) / partition_tokens_;
    wanted = std::min(wanted + missing, candidates.size());
  }
}

void OracleAlgorithm::RankByMass(const SelectJob& job,
                                 PartitionRange candidates,
                                 SelectWorkspace& workspace) const {
  index_.ComputeMass(job, workspace);
  workspace.best.assign(candidates.size(), 0.0F);
  for (uint32_t head = 0; head < job.group; ++head) {
    const float* const mass = workspace.scores.data() + size_t{head} * job.num_tokens();
    for (uint32_t i = 0; i < candidates.size(); ++i) {
      const float* const begin = mass + size_t{candidates.begin + i} * partition_tokens_;
      workspace.best[i] += std::accumulate(begin, begin + partition_tokens_, 0.0F);
    }
  }
}

void RandomAlgorithm::Select(const SelectJob& job,
                             SelectWorkspace& workspace,
                             sparse::Selection* out) const {
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
