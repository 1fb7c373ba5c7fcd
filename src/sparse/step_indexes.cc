#include "sparse/step_indexes.h"

#include <algorithm>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"

namespace spindle::sparse {

StepIndexes::StepIndexes(const kv::KvStore& store,
                         platform::ComputePool& pool,
                         const kernels::KernelTable& kernels)
    : kv_(store), pool_(pool), kernels_(kernels) {}

absl::Status StepIndexes::BeginStep(std::span<const SequenceRows> rows) {
  UndoUnfinished();
  sequences_.clear();
  blobs_.clear();
  for (const SequenceRows& sequence : rows) {
    SPINDLE_RETURN_IF_ERROR(Add(sequence));
  }
  return absl::OkStatus();
}

// A step that failed half way has not built what it promised.
void StepIndexes::UndoUnfinished() {
  for (const Job& job : jobs_) {
    job.store->SetBuiltLanes(job.slot, job.generation, job.lane_begin);
  }
  jobs_.clear();
}

absl::StatusOr<IndexStore*> StepIndexes::StoreOf(const SparseAlgorithm& algorithm) {
  auto it = stores_.find(&algorithm);
  if (it == stores_.end()) {
    SPINDLE_ASSIGN_OR_RETURN(
        IndexStore store,
        IndexStore::Create(
            kv_.geometry(), kv_.Stats().capacity_stripes, algorithm.index_bytes(kv_.geometry())));
    it = stores_.emplace(&algorithm, std::move(store)).first;
  }
  return &it->second;
}

absl::Status StepIndexes::Add(const SequenceRows& rows) {
  if (rows.policy == nullptr || rows.policy->algorithm().index_bytes(kv_.geometry()) == 0) {
    sequences_.push_back({nullptr, blobs_.size(), blobs_.size()});
    return absl::OkStatus();
  }
  const SparseAlgorithm& algorithm = rows.policy->algorithm();
  SPINDLE_ASSIGN_OR_RETURN(IndexStore* const store, StoreOf(algorithm));
  const kv::SequenceView view = kv_.View(rows.sequence);
  const uint32_t num_tokens = rows.first_position + rows.num_rows;
  const uint32_t num_stripes = kv::KvStore::StripesFor(num_tokens);
  const size_t begin = blobs_.size();
  for (uint32_t i = 0; i < num_stripes; ++i) {
    const uint32_t slot = view.slots[i];
    const uint32_t generation = view.generations[slot];
    const uint32_t lane_end =
        std::min<uint32_t>(kStripeTokens, num_tokens - i * static_cast<uint32_t>(kStripeTokens));
    const uint32_t built = store->BuiltLanes(slot, generation);
    if (built < lane_end) {
      SPINDLE_RETURN_IF_ERROR(store->Cover(slot));
      jobs_.push_back({&algorithm, store, view.stripes[i], slot, generation, built, lane_end});
      // From now on, so that another sequence of the step leaves it alone.
      store->SetBuiltLanes(slot, generation, lane_end);
    }
    blobs_.push_back(store->Data(slot));
  }
  sequences_.push_back({store, begin, blobs_.size()});
  return absl::OkStatus();
}

absl::Status StepIndexes::Build(LayerIdx layer) {
  const uint32_t num_heads = kv_.geometry().num_kv_heads;
  return pool_.Run(static_cast<uint32_t>(jobs_.size()) * num_heads,
                   1,
                   [&](kernels::WorkRange range, kernels::Exec* /*exec*/) {
                     for (uint32_t i = range.begin; i < range.end; ++i) {
                       const int code = BuildHead(jobs_[i / num_heads], layer, i % num_heads);
                       if (code != kernels::kOk) {
                         return code;
                       }
                     }
                     return static_cast<int>(kernels::kOk);
                   });
}

int StepIndexes::BuildHead(const Job& job, LayerIdx layer, uint32_t head) const {
  const kv::KvGeometry& geometry = kv_.geometry();
  const IndexJob index{
      .keys = {.k = job.stripe + geometry.row_offset(layer.value(), 0) +
                    head * geometry.head_bytes(),
               .page_tokens = geometry.page_tokens(),
               .page_bytes = geometry.page_bytes(),
               .head_dim = geometry.head_dim,
               .type = geometry.type},
      .lane_begin = job.lane_begin,
      .lane_end = job.lane_end,
      .index = job.store->Data(job.slot) + job.store->Offset(layer.value(), head),
  };
  return job.algorithm->BuildIndex(index, kernels_);
}

IndexView StepIndexes::ViewOf(uint32_t sequence, LayerIdx layer, KvHeadIdx head) const {
  const SequenceIndex& index = sequences_[sequence];
  if (index.store == nullptr) {
    return {};
  }
  return {.stripes = std::span(blobs_).subspan(index.begin, index.end - index.begin),
          .offset = index.store->Offset(layer.value(), head.value())};
}

uint64_t StepIndexes::committed_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [algorithm, store] : stores_) {
    bytes += store.committed_bytes();
  }
  return bytes;
}

}  // namespace spindle::sparse
