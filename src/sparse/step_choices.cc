#include "sparse/step_choices.h"

#include <algorithm>

#include "base/prefix_key.h"
#include "base/status_macros.h"

namespace spindle::sparse {
namespace {

// Makes positions [begin, end) live, which come after all tiles or in the last one.
void AppendPositions(uint32_t begin, uint32_t end, std::vector<TileLive>* tiles) {
  for (uint32_t position = begin; position < end; ++position) {
    const auto tile = static_cast<uint32_t>(position / kStripeTokens);
    if (tiles->empty() || tiles->back().tile != tile) {
      tiles->push_back({.tile = tile, .live = 0});
    }
    tiles->back().live |= uint64_t{1} << (position % kStripeTokens);
  }
}

}  // namespace

StepChoices::StepChoices(const kv::KvGeometry& geometry,
                         platform::ComputePool& pool,
                         const kernels::KernelTable& kernels)
    : geometry_(geometry), pool_(pool), workspaces_(pool.num_workers(), SelectWorkspace(kernels)) {}

void StepChoices::BeginStep(const StepJobs& jobs) {
  jobs_ = &jobs;
  holds_ = false;
  keeps_ = false;
  sparse_jobs_.clear();
  choice_of_.assign(jobs.jobs().size(), 0);
  is_dense_.assign(jobs.jobs().size(), true);
  all_dense_ = true;
  size_t most_tiles = 0;
  for (uint32_t i = 0; i < jobs.jobs().size(); ++i) {
    const StepJob& job = jobs.jobs()[i];
    if (!job.IsSparse()) {
      continue;
    }
    choice_of_[i] = static_cast<uint32_t>(sparse_jobs_.size());
    sparse_jobs_.push_back(i);
    most_tiles = std::max(most_tiles, jobs.DenseTilesOf(job).size());
    holds_ = holds_ || !job.Chooses();
    keeps_ = keeps_ || (job.policy != nullptr && job.policy->settings().reselect_interval > 1);
  }
  const size_t num_choices = sparse_jobs_.size() * geometry_.num_kv_heads;
  choices_.resize(std::max(choices_.size(), num_choices));
  for (size_t i = 0; i < num_choices; ++i) {
    choices_[i].tiles.reserve(most_tiles);
  }
  for (SelectWorkspace& workspace : workspaces_) {
    workspace.always.reserve(most_tiles);
    workspace.runs.reserve(most_tiles * (kStripeTokens / geometry_.page_tokens()));
  }
}

// Calls take(job, KV head, workspace), which returns a kernel code, for the layer's sparse jobs, on
// the pool.
template <typename Take>
absl::Status StepChoices::ForChoices(LayerIdx layer, const Take& take) {
  const uint32_t num_heads = geometry_.num_kv_heads;
  const auto num_choices = static_cast<uint32_t>(sparse_jobs_.size()) * num_heads;
  return pool_.Run(num_choices, 1, [&](kernels::WorkRange range, kernels::Exec* exec) {
    for (uint32_t i = range.begin; i < range.end; ++i) {
      const uint32_t job = sparse_jobs_[i / num_heads];
      if (!jobs_->jobs()[job].IsDense(layer)) {
        SelectWorkspace& workspace = workspaces_[exec->worker];
        workspace.exec = exec;
        if (const int code = take(job, i % num_heads, workspace); code != kernels::kOk) {
          return code;
        }
      }
    }
    return static_cast<int>(kernels::kOk);
  });
}

void StepChoices::Select(const ChoiceQueries& queries,
                         size_t job_idx,
                         uint32_t head,
                         SelectWorkspace& workspace) {
  const StepJob& job = jobs_->jobs()[job_idx];
  const KvHeadIdx kv_head(static_cast<uint16_t>(head));
  const SparsePolicy& policy = *job.policy;
  const tensor::AttentionSpec& spec = *queries.spec;
  const StoredKeys keys = KeysOf(job, queries.layer, head);
  const SelectJob select{
      .position = job.first_position,
      .decode_step = job.decode_step,
      .layer = queries.layer,
      .head = kv_head,
      .settings = &policy.settings(),
      .budget_tokens = policy.BudgetTokens(queries.layer, kv_head, job.num_tokens()),
      .q = queries.q + job.row_begin * queries.q_stride +
           size_t{head} * spec.group() * spec.head_dim,
      .group = spec.group(),
      .head_dim = spec.head_dim,
      .scale = spec.scale,
      .softcap = spec.softcap,
      .index = queries.indexes->ViewOf(job.sequence, queries.layer, kv_head),
      .spec = queries.spec,
      .keys = policy.settings().NeedsMass() ? &keys : nullptr,
  };
  Selection& selection = Of(job_idx, head);
  selection.Clear();
  policy.algorithm().Select(select, workspace, &selection);
}

int StepChoices::SelectBlocks(const ChoiceQueries& queries,
                              size_t job_idx,
                              uint32_t head,
                              SelectWorkspace& workspace) {
  constexpr uint32_t kTiles = kPrefillBlockTokens / kStripeTokens;
  const StepJob& job = jobs_->jobs()[job_idx];
  const tensor::AttentionSpec& spec = *queries.spec;
  const PrefillJob select{
      .block = job.first_position / kPrefillBlockTokens,
      .knobs = job.prefill->knobs(),
      .q = queries.q + job.row_begin * queries.q_stride +
           size_t{head} * spec.group() * spec.head_dim,
      .q_stride = queries.q_stride,
      .group = spec.group(),
      .head_dim = spec.head_dim,
      .scale = spec.scale,
      .softcap = spec.softcap,
      .keys = KeysOf(job, queries.layer, head),
  };
  workspace.chosen.assign(select.block / 64 + 1, 0);
  if (const int code = job.prefill->method().Select(select, workspace, workspace.chosen);
      code != kernels::kOk) {
    return code;
  }
  Selection& selection = Of(job_idx, head);
  selection.Clear();
  for (uint32_t block = 0; block <= select.block; ++block) {
    for (uint32_t i = 0; i < kTiles && (workspace.chosen[block / 64] >> (block % 64) & 1) != 0;
         ++i) {
      selection.tiles.push_back({.tile = block * kTiles + i, .live = ~uint64_t{0}});
    }
  }
  return kernels::kOk;
}

StoredKeys StepChoices::KeysOf(const StepJob& job, LayerIdx layer, uint32_t head) const {
  return {
      .geometry = &geometry_,
      .stripes = jobs_->sequences()[job.sequence].stripes,
      .kv_offset = layer.value() * geometry_.extent_bytes() + head * geometry_.head_bytes(),
  };
}

void StepChoices::Copy(size_t job, uint32_t head, Selection* out) const {
  if (!is_dense_[job]) {
    *out = Of(job, head);
    return;
  }
  const std::span<const TileLive> all = jobs_->DenseTilesOf(jobs_->jobs()[job]);
  out->Clear();
  out->tiles.assign(all.begin(), all.end());
  out->mass = 1;
}

void StepChoices::Hold(LayerIdx layer, size_t job_idx, uint32_t head) {
  const StepJob& job = jobs_->jobs()[job_idx];
  const SequenceRows& rows = jobs_->sequences()[job.sequence].rows;
  const Selection* anchor = nullptr;
  if (job.anchor >= rows.first_position) {
    // Rows between the anchor and this one are jobs of their own.
    anchor = &Of(job_idx - (job.first_position - job.anchor), head);
  } else {
    SPINDLE_CHECK(rows.kept != nullptr && rows.kept->anchor == job.anchor);
    anchor = &rows.kept->groups[size_t{layer.value()} * geometry_.num_kv_heads + head];
  }
  Selection& selection = Of(job_idx, head);
  selection = *anchor;
  AppendPositions(job.anchor + 1, job.num_tokens(), &selection.tiles);
}

// After all jobs of the layer have what they hold: the last choice of every sequence is the next
// step's.
void StepChoices::Keep(LayerIdx layer, bool chooses) {
  const uint32_t num_heads = geometry_.num_kv_heads;
  for (const StepSequence& sequence : jobs_->sequences()) {
    const StepJob& last = jobs_->jobs()[sequence.job_end - 1];
    KeptChoice* const kept = sequence.rows.kept;
    if (kept == nullptr || last.policy == nullptr || last.anchor < sequence.rows.first_position ||
        last.policy->settings().reselect_interval == 1) {
      continue;
    }
    const size_t anchor_job = sequence.job_end - 1 - (last.first_position - last.anchor);
    kept->groups.resize(size_t{geometry_.num_layers} * num_heads);
    for (uint32_t head = 0; chooses && head < num_heads && !last.IsDense(layer); ++head) {
      kept->groups[size_t{layer.value()} * num_heads + head] = Of(anchor_job, head);
    }
    if (layer.value() + 1U == geometry_.num_layers) {
      kept->anchor = last.anchor;
    }
  }
}

void StepChoices::FallBack(LayerIdx layer, StepUse* use) {
  all_dense_ = true;
  for (size_t i = 0; i < jobs_->jobs().size(); ++i) {
    const StepJob& job = jobs_->jobs()[i];
    is_dense_[i] = job.IsDense(layer);
    if (is_dense_[i]) {
      continue;
    }
    const double min_mass = job.policy == nullptr ? 0 : job.policy->settings().min_mass;
    for (uint32_t head = 0; head < geometry_.num_kv_heads && min_mass > 0; ++head) {
      // No number is no assurance either.
      is_dense_[i] = is_dense_[i] || !(double{Of(i, head).mass} >= min_mass);
    }
    for (uint32_t head = 0; head < geometry_.num_kv_heads; ++head) {
      const Selection& choice = Of(i, head);
      if (is_dense_[i]) {
        use->RecordFallback(i, job.num_tokens());
      } else {
        use->Record(i, choice);
      }
    }
    all_dense_ = all_dense_ && is_dense_[i];
  }
}

absl::Status StepChoices::Choose(const ChoiceQueries& queries, StepUse* use) {
  if (sparse_jobs_.empty()) {
    return absl::OkStatus();
  }
  // A layer with a window sees little in any case, and choices know no windows.
  if (queries.spec->window != 0) {
    is_dense_.assign(is_dense_.size(), true);
    all_dense_ = true;
    if (keeps_) {
      Keep(queries.layer, /*chooses=*/false);
    }
    return absl::OkStatus();
  }
  SPINDLE_RETURN_IF_ERROR(
      ForChoices(queries.layer, [&](size_t job, uint32_t head, SelectWorkspace& workspace) {
        if (jobs_->jobs()[job].prefill != nullptr) {
          return SelectBlocks(queries, job, head, workspace);
        }
        if (jobs_->jobs()[job].Chooses()) {
          Select(queries, job, head, workspace);
        }
        return static_cast<int>(kernels::kOk);
      }));
  if (holds_) {
    SPINDLE_RETURN_IF_ERROR(
        ForChoices(queries.layer, [&](size_t job, uint32_t head, SelectWorkspace& /*workspace*/) {
          if (!jobs_->jobs()[job].Chooses()) {
            Hold(queries.layer, job, head);
          }
          return static_cast<int>(kernels::kOk);
        }));
  }
  if (keeps_) {
    Keep(queries.layer, /*chooses=*/true);
  }
  FallBack(queries.layer, use);
  return absl::OkStatus();
}

}  // namespace spindle::sparse
