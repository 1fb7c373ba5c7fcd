#include "sparse/in_place_attention.h"

#include <algorithm>
#include <span>

#include "base/status_macros.h"
#include "sparse/attention_scratch.h"
#include "sparse/run_builder.h"

namespace spindle::sparse {
namespace {

// Fewer items than this are merged without waking the pool.
constexpr uint32_t kMergeGrain = 8;

}  // namespace

InPlaceAttention::InPlaceAttention(const kv::KvGeometry& geometry,
                                   uint64_t max_tiles,
                                   platform::ComputePool& pool,
                                   const kernels::KernelTable& kernels)
    : geometry_(geometry), pool_(pool), kernels_(kernels) {
  // Addresses only, until contexts are really that long; batches that share stripes may need more.
  dense_runs_.reserve(max_tiles * (kStripeTokens / geometry.page_tokens()));
}

void InPlaceAttention::BeginStep(const StepJobs& jobs) {
  jobs_ = &jobs;
  has_dense_plan_ = false;
  dense_runs_.clear();
  ranges_.clear();
  sparse_jobs_.clear();
  size_t most_tiles = 0;
  for (uint32_t i = 0; i < jobs.jobs().size(); ++i) {
    const StepJob& job = jobs.jobs()[i];
    const std::span<const TileLive> tiles = jobs.DenseTilesOf(job);
    const size_t begin = dense_runs_.size();
    AppendRuns(geometry_, jobs.sequences()[job.sequence].stripes, tiles, &dense_runs_);
    ranges_.push_back({begin, dense_runs_.size()});
    if (job.IsSparse()) {
      sparse_jobs_.push_back(i);
      most_tiles = std::max(most_tiles, tiles.size());
    }
  }
  const size_t num_choices = sparse_jobs_.size() * geometry_.num_kv_heads;
  chosen_runs_.resize(std::max(chosen_runs_.size(), num_choices));
  for (size_t i = 0; i < num_choices; ++i) {
    chosen_runs_[i].reserve(most_tiles * (kStripeTokens / geometry_.page_tokens()));
  }
}

absl::Status InPlaceAttention::BuildRuns(StepChoices& choices) {
  const uint32_t num_heads = geometry_.num_kv_heads;
  const auto num_choices = static_cast<uint32_t>(sparse_jobs_.size()) * num_heads;
  return pool_.Run(num_choices, 1, [&](kernels::WorkRange range, kernels::Exec* /*exec*/) {
    for (uint32_t i = range.begin; i < range.end; ++i) {
      const uint32_t job = sparse_jobs_[i / num_heads];
      if (!choices.IsDense(job)) {
        chosen_runs_[i].clear();
        AppendSelectionRuns(geometry_,
                            jobs_->sequences()[jobs_->jobs()[job].sequence].stripes,
                            choices.SelectionOf(job, i % num_heads),
                            &chosen_runs_[i]);
      }
    }
    return static_cast<int>(kernels::kOk);
  });
}

void InPlaceAttention::BuildItems(const LayerQueries& queries) {
  const tensor::AttentionSpec& spec = *queries.spec;
  items_.clear();
  const std::vector<kernels::KvRun>* chosen = chosen_runs_.data();
  for (size_t i = 0; i < jobs_->jobs().size(); ++i) {
    const StepJob& job = jobs_->jobs()[i];
    const std::span<const kernels::KvRun> all =
        std::span(dense_runs_).subspan(ranges_[i].begin, ranges_[i].end - ranges_[i].begin);
    for (uint32_t head = 0; head < spec.num_kv_heads; ++head) {
      const bool is_dense = queries.choices->IsDense(i);
      const std::span<const kernels::KvRun> runs = is_dense ? all : std::span(chosen[head]);
      std::vector<float>* const estimate =
          is_dense || queries.choices->SelectionOf(i, head).estimate.empty()
              ? nullptr
              : &queries.choices->SelectionOf(i, head).estimate;
      items_.push_back({
          .q = queries.q + job.row_begin * queries.q_stride + queries.HeadOffset(head),
          .out = queries.out + job.row_begin * queries.out_stride + queries.HeadOffset(head),
          .lse = nullptr,
          .runs = runs.data(),
          .num_runs = static_cast<uint32_t>(runs.size()),
          .num_rows = job.num_rows,
          .first_position = job.first_position,
          .window = spec.window,
          .kv_offset =
              queries.layer.value() * geometry_.extent_bytes() + head * geometry_.head_bytes(),
          .last_span = estimate == nullptr ? nullptr : estimate->data(),
      });
    }
    if (job.IsSparse()) {
      chosen += spec.num_kv_heads;
    }
  }
}

absl::Status InPlaceAttention::Plan(const kernels::AttentionArgs& args, bool is_dense) {
  const uint32_t window = args.items[0].window;
  if (is_dense && has_dense_plan_ && plan_window_ == window) {
    return absl::OkStatus();
  }
  const size_t state_floats = size_t{args.group} * (args.head_dim + 2);
  const auto refresh = [&] {
    plan_.units = units_.data();
    plan_.unit_capacity = static_cast<uint32_t>(units_.size());
    plan_.partials = partials_.As<float>().data();
    plan_.partial_capacity = static_cast<uint32_t>(partials_.size() / sizeof(float) / state_floats);
  };
  refresh();
  int code = kernels_.plan_attention(args, pool_.num_workers(), &plan_);
  if (code == kernels::kScratchTooSmall) {
    if (plan_.num_units > units_.size()) {
      units_.resize(2 * size_t{plan_.num_units});
    }
    SPINDLE_RETURN_IF_ERROR(GrowFloats(plan_.num_partials * state_floats, &partials_));
    refresh();
    code = kernels_.plan_attention(args, pool_.num_workers(), &plan_);
  }
  has_dense_plan_ = is_dense && code == kernels::kOk;
  plan_window_ = window;
  return platform::ToStatus(code);
}

absl::Status InPlaceAttention::Attend(const LayerQueries& queries) {
  const tensor::AttentionSpec& spec = *queries.spec;
  const bool is_dense = queries.choices->AllDense();
  if (!is_dense) {
    SPINDLE_RETURN_IF_ERROR(BuildRuns(*queries.choices));
  }
  BuildItems(queries);
  const kernels::AttentionArgs attention{
      .items = items_.data(),
      .num_items = static_cast<uint32_t>(items_.size()),
      .q_stride = queries.q_stride,
      .out_stride = queries.out_stride,
      .head_dim = spec.head_dim,
      .group = spec.group(),
      .scale = spec.scale,
      .softcap = spec.softcap,
      .kv_type = geometry_.type,
  };
  SPINDLE_RETURN_IF_ERROR(Plan(attention, is_dense));
  SPINDLE_RETURN_IF_ERROR(pool_.Run(
      plan_.num_units,
      1,
      [&](kernels::WorkRange range, kernels::Exec* exec) {
        return kernels_.attention(attention, plan_, range, exec);
      },
      platform::Claiming::kInOrder));
  if (plan_.num_partials == 0) {
    return absl::OkStatus();
  }
  return pool_.Run(
      attention.num_items, kMergeGrain, [&](kernels::WorkRange range, kernels::Exec* exec) {
        return kernels_.merge_attention(attention, plan_, range, exec);
      });
}

}  // namespace spindle::sparse
