#include "kv/sim/recorded_run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "kv/fast/frame_pool.h"
#include "kv/sim/bucketed_policy.h"

namespace spindle::kv::sim {
namespace {

class Loader {
 public:
  Loader(RecordedRun* run, uint32_t warmup_steps) : run_(run), warmup_steps_(warmup_steps) {}

  absl::Status Add(const AccessRecord& record) {
    if (run_->num_steps == 0 || record.step != last_step_) {
      ++run_->num_steps;
      last_step_ = record.step;
    }
    switch (record.kind) {
      case AccessKind::kSelect:
        return Select(record);
      case AccessKind::kResize:
        return Resize(record);
      case AccessKind::kPause:
        Pause(record.request);
        return absl::OkStatus();
      case AccessKind::kEnd:
        End(record.request);
        return absl::OkStatus();
      case AccessKind::kFork:
        return Fork(record);
      case AccessKind::kAppend:
      case AccessKind::kPrefill:
        return absl::OkStatus();  // rows go to the host and to frames there are: no page moves
    }
    return absl::OkStatus();
  }

 private:
  using GroupKey = std::tuple<uint16_t, uint16_t, uint8_t>;  // request, layer, head
  using Change = RecordedGroup::Change;

  absl::Status Select(const AccessRecord& record) {
    num_accesses_ += record.ids.size();
    if (num_accesses_ > kMaxRecordedAccesses) {
      return TooMany("selected pages", kMaxRecordedAccesses);
    }
    SPINDLE_ASSIGN_OR_RETURN(RecordedGroup* const group,
                             FindOrAdd({record.request, record.layer, record.head}));
    const bool had_all = group->was_hit.size() == group->selections.num_accesses();
    group->selections.Append(record.ids);
    group->server_steps.push_back(record.step);
    group->caching.push_back(record.caching);
    if (!had_all || (record.hit_bits.empty() && !record.ids.empty())) {
      group->was_hit.clear();
      return absl::OkStatus();
    }
    for (size_t i = 0; i < record.ids.size(); ++i) {
      group->was_hit.push_back(record.hit_bits[i / 8] >> (i % 8) & 1);
    }
    return absl::OkStatus();
  }

  absl::Status Resize(const AccessRecord& record) {
    const KvGeometry& geometry = run_->header.geometry;
    const bool all = record.layer == kAllLayers;
    const uint32_t layer_begin = all ? 0 : record.layer;
    const uint32_t layer_end = all ? geometry.num_layers : layer_begin + 1;
    const uint32_t head_begin = all ? 0 : record.head;
    const uint32_t head_end = all ? geometry.num_kv_heads : head_begin + 1;
    for (uint32_t layer = layer_begin; layer < layer_end; ++layer) {
      for (uint32_t head = head_begin; head < head_end; ++head) {
        const GroupKey key = {
            record.request, static_cast<uint16_t>(layer), static_cast<uint8_t>(head)};
        SPINDLE_ASSIGN_OR_RETURN(RecordedGroup* const group, FindOrAdd(key));
        AddChange(*group, {.kind = Change::Kind::kResize, .frames = record.ids.front()});
      }
    }
    return absl::OkStatus();
  }

  void Pause(uint16_t request) {
    for (auto place = FirstOf(request); place != EndOf(request); ++place) {
      AddChange(run_->groups[place->second], {.kind = Change::Kind::kPause});
    }
  }

  // Groups of the parent that nothing has happened to yet have no pages to give.
  absl::Status Fork(const AccessRecord& record) {
    const auto parent_request = static_cast<uint16_t>(record.ids.front());
    for (auto place = FirstOf(parent_request); place != EndOf(parent_request); ++place) {
      const size_t parent = place->second;
      const auto [request, layer, head] = place->first;
      if (IsFork(run_->groups[parent])) {
        return absl::InvalidArgumentError(
            "page-access trace: request " + std::to_string(record.request) +
            " is the fork of a fork, in step " + std::to_string(record.step));
      }
      SPINDLE_ASSIGN_OR_RETURN(RecordedGroup* const child,
                               FindOrAdd({record.request, layer, head}));
      if (child->selections.num_steps() > 0 || IsFork(*child)) {
        return absl::InvalidArgumentError(
            "page-access trace: request " + std::to_string(record.request) +
            " is forked when it is not new, in step " + std::to_string(record.step));
      }
      const RecordedGroup& of = run_->groups[parent];
      AddChange(*child,
                {.kind = Change::Kind::kFork,
                 .parent = parent,
                 .parent_steps = of.selections.num_steps(),
                 .parent_changes = of.changes.size()});
    }
    return absl::OkStatus();
  }

  static bool IsFork(const RecordedGroup& group) {
    return std::ranges::any_of(
        group.changes, [](const Change& change) { return change.kind == Change::Kind::kFork; });
  }

  static void AddChange(RecordedGroup& group, Change change) {
    change.step = group.selections.num_steps();
    group.changes.push_back(change);
  }

  void End(uint16_t request) {
    requests_.erase(request);
    places_.erase(FirstOf(request), EndOf(request));
  }

  std::map<GroupKey, size_t>::iterator FirstOf(uint16_t request) {
    return places_.lower_bound({request, 0, 0});
  }

  std::map<GroupKey, size_t>::iterator EndOf(uint16_t request) {
    return places_.upper_bound({request, kAllLayers, kAllHeads});
  }

  static absl::Status TooMany(const char* what, uint64_t max) {
    return absl::ResourceExhaustedError("page-access trace with more than " + std::to_string(max) +
                                        " " + what);
  }

  absl::StatusOr<RecordedGroup*> FindOrAdd(const GroupKey& key) {
    const auto [place, is_new] = places_.try_emplace(key, run_->groups.size());
    if (is_new) {
      if (run_->groups.size() == kMaxRecordedGroups) {
        return TooMany("groups", kMaxRecordedGroups);
      }
      const auto [request, is_new_request] =
          requests_.try_emplace(std::get<0>(key), run_->num_requests);
      run_->num_requests += is_new_request ? 1U : 0U;
      RecordedGroup& group = run_->groups.emplace_back();
      group.request = request->second;
      group.layer = std::get<1>(key);
      group.head = std::get<2>(key);
      group.selections = SelectionTrace(0, warmup_steps_);
    }
    return &run_->groups[place->second];
  }

  RecordedRun* run_;
  uint32_t warmup_steps_;
  uint32_t last_step_ = 0;
  uint64_t num_accesses_ = 0;
  std::map<uint16_t, uint32_t> requests_;  // number in the trace → number of the run
  std::map<GroupKey, size_t> places_;
};

}  // namespace

absl::StatusOr<RecordedRun> LoadRecordedRun(std::span<const uint8_t> bytes, uint32_t warmup_steps) {
  SPINDLE_ASSIGN_OR_RETURN(AccessTraceReader reader, AccessTraceReader::Open(bytes));
  RecordedRun run;
  run.header = reader.header();
  Loader loader(&run, warmup_steps);
  AccessRecord record;
  while (true) {
    SPINDLE_ASSIGN_OR_RETURN(const bool found, reader.Next(&record));
    if (!found) {
      break;
    }
    SPINDLE_RETURN_IF_ERROR(loader.Add(record));
  }
  run.ending = reader.ending();
  return run;
}

namespace {

using Change = RecordedGroup::Change;

// One group on its way through its selections and changes.
class Replay {
 public:
  Replay(const RecordedRun& run, const RecordedGroup& group, BucketedPolicy& policy)
      : run_(run), group_(group), policy_(policy), is_hit_(group.selections.max_step_pages()) {}

  absl::Status RunTo(uint32_t end_step, size_t end_change) {
    for (; step_ < end_step; ++step_) {
      SPINDLE_RETURN_IF_ERROR(ApplyChanges(end_change));
      Select();
    }
    return ApplyChanges(end_change);
  }

  [[nodiscard]] const ReplayResult& result() const { return result_; }

 private:
  // Those in front of the next selection.
  absl::Status ApplyChanges(size_t end) {
    for (; change_ < end && group_.changes[change_].step == step_; ++change_) {
      SPINDLE_RETURN_IF_ERROR(Apply(group_.changes[change_]));
    }
    return absl::OkStatus();
  }

  absl::Status Apply(const Change& change) {
    switch (change.kind) {
      case Change::Kind::kResize:
        return policy_.Resize(change.frames);
      case Change::Kind::kPause:
        policy_.Pause();
        return absl::OkStatus();
      case Change::Kind::kFork:
        return Fork(change);
    }
    return absl::OkStatus();
  }

  absl::Status Fork(const Change& change) {
    SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<BucketedPolicy> policy, policy_.OpenAnother());
    Replay parent(run_, run_.groups[change.parent], *policy);
    SPINDLE_RETURN_IF_ERROR(parent.RunTo(change.parent_steps, change.parent_changes));
    policy_.Adopt(*policy);
    return absl::OkStatus();
  }

  void Select() {
    const SelectionTrace& trace = group_.selections;
    const std::span<const uint32_t> pages = trace.step(step_);
    if (step_ == 0 || group_.server_steps[step_] != group_.server_steps[step_ - 1]) {
      policy_.BeginStep();
    }
    const uint32_t hits =
        policy_.Select(group_.caching[step_], pages, std::span(is_hit_).first(pages.size()));
    if (step_ >= trace.warmup_steps()) {
      result_.count += {pages.size(), hits};
    }
    if (!group_.was_hit.empty()) {
      const auto recorded =
          std::span(group_.was_hit).subspan(trace.step_begin(step_), pages.size());
      for (size_t i = 0; i < pages.size(); ++i) {
        result_.differences += is_hit_[i] != recorded[i] ? 1U : 0U;
      }
      result_.compared += pages.size();
    }
  }

  const RecordedRun& run_;
  const RecordedGroup& group_;
  BucketedPolicy& policy_;
  std::vector<uint8_t> is_hit_;
  uint32_t step_ = 0;
  size_t change_ = 0;
  ReplayResult result_;
};

void Widen(const RecordedGroup& group, BucketedOptions* options) {
  for (const Change& change : group.changes) {
    options->max_frames = std::max(options->max_frames, change.frames);
  }
  options->num_pages = std::max(options->num_pages, group.selections.num_pages());
  options->max_step_pages = std::max(options->max_step_pages, group.selections.max_step_pages());
}

}  // namespace

absl::StatusOr<ReplayResult> ReplayRecordedSizes(const RecordedRun& run, size_t group) {
  const RecordedGroup& replayed = run.groups[group];
  if (replayed.selections.num_pages() == 0) {
    return ReplayResult();
  }
  BucketedOptions options{.lru = run.header.lru, .max_frames = kRunFrames};
  Widen(replayed, &options);
  for (const Change& change : replayed.changes) {
    if (change.kind == Change::Kind::kFork) {
      Widen(run.groups[change.parent], &options);
      options.num_groups = 2;
    }
  }
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<BucketedPolicy> policy,
                           BucketedPolicy::Create(options));
  Replay replay(run, replayed, *policy);
  SPINDLE_RETURN_IF_ERROR(replay.RunTo(replayed.selections.num_steps(), replayed.changes.size()));
  return replay.result();
}

}  // namespace spindle::kv::sim
