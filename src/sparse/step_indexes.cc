#include "sparse/step_indexes.h"

#include <algorithm>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"

namespace spindle::sparse {

StepIndexes::StepIndexes(const kv::KvStore& store,
                         platform::ComputePool& pool,
                         const kernels::KernelTable& kernels)
    : kv_(store),
      pool_(pool),
      kernels_(kernels),
      workspaces_(pool.num_workers(), BuildWorkspace(kernels)) {}

absl::Status StepIndexes::BeginStep(std::span<const SequenceRows> rows) {
  UndoUnfinished();
  sequences_.clear();
  blobs_.clear();
  for (auto& [algorithm, store] : segment_stores_) {
    store.BeginStep();
  }
  for (const SequenceRows& sequence : rows) {
    SPINDLE_RETURN_IF_ERROR(Add(sequence));
  }
  return absl::OkStatus();
}

// A step that failed half way has not built what it promised.
void StepIndexes::UndoUnfinished() {
  for (const StripeWork& work : stripe_work_) {
    work.store->SetBuiltLanes(work.slot, work.generation, work.lane_begin);
  }
  for (const SegmentWork& work : segment_work_) {
    work.store->Forget(work.blob);
  }
  stripe_work_.clear();
  segment_work_.clear();
}

void StepIndexes::EndStep() {
  for (const StripeWork& work : stripe_work_) {
    Count(*work.algorithm, work.lane_end - work.lane_begin);
  }
  for (const SegmentWork& work : segment_work_) {
    Count(*work.algorithm, kSegmentTokens);
  }
  stripe_work_.clear();
  segment_work_.clear();
}

void StepIndexes::Count(const SparseAlgorithm& algorithm, uint64_t tokens) {
  const auto it = std::ranges::find(indexed_, algorithm.name(), &IndexedTokens::algorithm);
  if (it == indexed_.end()) {
    indexed_.push_back({algorithm.name(), tokens});
  } else {
    it->tokens += tokens;
  }
}

// The algorithm's store, made at first use.
template <typename Store>
absl::StatusOr<Store*> StepIndexes::StoreOf(const SparseAlgorithm& algorithm,
                                            std::map<const SparseAlgorithm*, Store>* stores) const {
  auto it = stores->find(&algorithm);
  if (it == stores->end()) {
    SPINDLE_ASSIGN_OR_RETURN(
        Store store,
        Store::Create(
            kv_.geometry(), kv_.Stats().capacity_stripes, algorithm.index_bytes(kv_.geometry())));
    it = stores->emplace(&algorithm, std::move(store)).first;
  }
  return &it->second;
}

absl::Status StepIndexes::Add(const SequenceRows& rows) {
  if (rows.policy == nullptr || rows.policy->algorithm().index_bytes(kv_.geometry()) == 0) {
    sequences_.push_back({nullptr, nullptr, blobs_.size(), blobs_.size()});
    return absl::OkStatus();
  }
  return rows.policy->algorithm().index_unit() == IndexUnit::kSegment ? AddSegments(rows)
                                                                      : AddStripes(rows);
}

absl::Status StepIndexes::AddSegments(const SequenceRows& rows) {
  const uint32_t num_tokens = rows.first_position + rows.num_rows;
  // Clustering is dear: not before a row may use it.
  if (rows.policy->IsDenseAt(num_tokens)) {
    sequences_.push_back({nullptr, nullptr, blobs_.size(), blobs_.size()});
    return absl::OkStatus();
  }
  constexpr auto kStripes = static_cast<uint32_t>(kSegmentTokens / kStripeTokens);
  const SparseAlgorithm& algorithm = rows.policy->algorithm();
  SPINDLE_ASSIGN_OR_RETURN(SegmentIndexStore* const store, StoreOf(algorithm, &segment_stores_));
  const kv::SequenceView view = kv_.View(rows.sequence);
  const size_t begin = blobs_.size();
  for (uint32_t i = 0; i < num_tokens / kSegmentTokens; ++i) {
    SPINDLE_ASSIGN_OR_RETURN(const SegmentIndexStore::Found found,
                             store->Find(view.slots[(i + 1) * kStripes - 1], view.generations));
    if (!found.is_built) {
      segment_work_.push_back(
          {&algorithm, store, found.blob, i, view.stripes.subspan(i * kStripes, kStripes)});
    }
    blobs_.push_back(store->Data(found.blob));
  }
  sequences_.push_back({nullptr, store, begin, blobs_.size()});
  return absl::OkStatus();
}

absl::Status StepIndexes::AddStripes(const SequenceRows& rows) {
  const SparseAlgorithm& algorithm = rows.policy->algorithm();
  SPINDLE_ASSIGN_OR_RETURN(IndexStore* const store, StoreOf(algorithm, &stores_));
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
      stripe_work_.push_back({&algorithm,
                              store,
                              view.stripes[i],
                              i * static_cast<uint32_t>(kStripeTokens),
                              slot,
                              generation,
                              built,
                              lane_end});
      // From now on, so that another sequence of the step leaves it alone.
      store->SetBuiltLanes(slot, generation, lane_end);
    }
    blobs_.push_back(store->Data(slot));
  }
  sequences_.push_back({store, nullptr, begin, blobs_.size()});
  return absl::OkStatus();
}

absl::Status StepIndexes::Build(LayerIdx layer, const tensor::AttentionSpec& spec) {
  const uint32_t num_heads = kv_.geometry().num_kv_heads;
  const auto num_stripes = static_cast<uint32_t>(stripe_work_.size());
  const auto num_units = num_stripes + static_cast<uint32_t>(segment_work_.size());
  return pool_.Run(num_units * num_heads, 1, [&](kernels::WorkRange range, kernels::Exec* exec) {
    for (uint32_t i = range.begin; i < range.end; ++i) {
      const uint32_t unit = i / num_heads;
      const int code = unit < num_stripes
                           ? BuildHead(stripe_work_[unit], layer, spec, i % num_heads)
                           : BuildHead(segment_work_[unit - num_stripes],
                                       layer,
                                       i % num_heads,
                                       workspaces_[exec->worker]);
      if (code != kernels::kOk) {
        return code;
      }
    }
    return static_cast<int>(kernels::kOk);
  });
}

int StepIndexes::BuildHead(const SegmentWork& work,
                           LayerIdx layer,
                           uint32_t head,
                           BuildWorkspace& workspace) const {
  const kv::KvGeometry& geometry = kv_.geometry();
  const SegmentJob segment{
      .geometry = &geometry,
      .stripes =
          std::span(const_cast<const uint8_t* const*>(work.stripes.data()), work.stripes.size()),
      .offset = geometry.row_offset(layer.value(), 0) + head * geometry.head_bytes(),
      .segment = work.segment,
      .index = work.store->Data(work.blob) + work.store->Offset(layer.value(), head),
  };
  return work.algorithm->BuildSegment(segment, workspace);
}

int StepIndexes::BuildHead(const StripeWork& job,
                           LayerIdx layer,
                           const tensor::AttentionSpec& spec,
                           uint32_t head) const {
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
      .first_position = job.first_position,
      .layer = layer,
      .head = KvHeadIdx(static_cast<uint16_t>(head)),
      .spec = &spec,
  };
  return job.algorithm->BuildIndex(index, kernels_);
}

IndexView StepIndexes::ViewOf(uint32_t sequence, LayerIdx layer, KvHeadIdx head) const {
  const SequenceIndex& index = sequences_[sequence];
  const auto blobs = std::span(blobs_).subspan(index.begin, index.end - index.begin);
  if (index.segments != nullptr) {
    return {.stripes = {},
            .offset = index.segments->Offset(layer.value(), head.value()),
            .segments = blobs};
  }
  if (index.stripes != nullptr) {
    return {.stripes = blobs, .offset = index.stripes->Offset(layer.value(), head.value())};
  }
  return {};
}

}  // namespace spindle::sparse
