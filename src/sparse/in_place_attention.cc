#include "sparse/in_place_attention.h"

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
  runs_.reserve(max_tiles * (kStripeTokens / geometry.page_tokens()));
}

void InPlaceAttention::BeginStep(const StepJobs& jobs) {
  jobs_ = &jobs;
  has_plan_ = false;
  runs_.clear();
  ranges_.clear();
  for (const StepJob& job : jobs.jobs()) {
    const size_t begin = runs_.size();
    AppendRuns(geometry_, jobs.sequences()[job.sequence].stripes, jobs.TilesOf(job), &runs_);
    ranges_.insert(ranges_.end(), geometry_.num_kv_heads, {begin, runs_.size()});
  }
  num_uniform_runs_ = runs_.size();
}

void InPlaceAttention::BuildLayerRuns(LayerIdx layer) {
  runs_.resize(num_uniform_runs_);
  auto range = ranges_.begin();
  for (const StepJob& job : jobs_->jobs()) {
    for (uint32_t head = 0; head < geometry_.num_kv_heads; ++head, ++range) {
      if (job.algorithm->is_uniform()) {
        continue;
      }
      SelectJob select = job.select;
      select.layer = layer;
      select.head = KvHeadIdx(static_cast<uint16_t>(head));
      tiles_.resize(kv::KvStore::StripesFor(select.num_tokens()));
      const uint32_t num_tiles = job.algorithm->Select(select, tiles_);
      const size_t begin = runs_.size();
      AppendRuns(geometry_,
                 jobs_->sequences()[job.sequence].stripes,
                 std::span(tiles_).first(num_tiles),
                 &runs_);
      *range = {begin, runs_.size()};
    }
  }
}

void InPlaceAttention::BuildItems(const LayerQueries& queries) {
  const tensor::AttentionSpec& spec = *queries.spec;
  const size_t head_floats = size_t{spec.group()} * spec.head_dim;
  items_.clear();
  auto range = ranges_.begin();
  for (const StepJob& job : jobs_->jobs()) {
    for (uint32_t head = 0; head < spec.num_kv_heads; ++head, ++range) {
      items_.push_back({
          .q = queries.q + job.row_begin * queries.q_stride + head * head_floats,
          .out = queries.out + job.row_begin * queries.out_stride + head * head_floats,
          .lse = nullptr,
          .runs = runs_.data() + range->begin,
          .num_runs = static_cast<uint32_t>(range->end - range->begin),
          .num_rows = job.select.num_rows,
          .first_position = job.select.first_position,
          .window = spec.window,
          .kv_offset =
              queries.layer.value() * geometry_.extent_bytes() + head * geometry_.head_bytes(),
      });
    }
  }
}

absl::Status InPlaceAttention::Plan(const kernels::AttentionArgs& args) {
  const uint32_t window = args.items[0].window;
  if (has_plan_ && plan_window_ == window) {
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
  has_plan_ = code == kernels::kOk && jobs_->all_uniform();
  plan_window_ = window;
  return platform::ToStatus(code);
}

absl::Status InPlaceAttention::Attend(const LayerQueries& queries) {
  const tensor::AttentionSpec& spec = *queries.spec;
  if (!jobs_->all_uniform()) {
    BuildLayerRuns(queries.layer);
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
  SPINDLE_RETURN_IF_ERROR(Plan(attention));
  SPINDLE_RETURN_IF_ERROR(
      pool_.Run(plan_.num_units, 1, [&](kernels::WorkRange range, kernels::Exec* exec) {
        return kernels_.attention(attention, plan_, range, exec);
      }));
  if (plan_.num_partials == 0) {
    return absl::OkStatus();
  }
  return pool_.Run(
      attention.num_items, kMergeGrain, [&](kernels::WorkRange range, kernels::Exec* exec) {
        return kernels_.merge_attention(attention, plan_, range, exec);
      });
}

}  // namespace spindle::sparse
