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
      case AccessKind::kAppend:
      case AccessKind::kPrefill:
        return absl::OkStatus();  // rows go to the host and to frames there are: no page moves
    }
    return absl::OkStatus();
  }

 private:
  using GroupKey = std::tuple<uint16_t, uint16_t, uint8_t>;  // request, layer, head

  absl::Status Select(const AccessRecord& record) {
    num_accesses_ += record.ids.size();
    if (num_accesses_ > kMaxRecordedAccesses) {
      return TooMany("selected pages", kMaxRecordedAccesses);
    }
    SPINDLE_ASSIGN_OR_RETURN(RecordedGroup* const group,
                             FindOrAdd({record.request, record.layer, record.head}));
    const bool had_all = group->was_hit.size() == group->selections.num_accesses();
    group->selections.Append(record.ids);
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
        group->sizes.push_back({.step = group->selections.num_steps(),
                                .frames = record.ids.front(),
                                .is_pause = false});
      }
    }
    return absl::OkStatus();
  }

  void Pause(uint16_t request) {
    for (auto place = FirstOf(request); place != EndOf(request); ++place) {
      RecordedGroup& group = run_->groups[place->second];
      group.sizes.push_back({.step = group.selections.num_steps(), .frames = 0, .is_pause = true});
    }
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

absl::StatusOr<ReplayResult> ReplayRecordedSizes(const LruOptions& lru,
                                                 const RecordedGroup& group) {
  const SelectionTrace& trace = group.selections;
  ReplayResult result;
  if (trace.num_pages() == 0) {
    return result;
  }
  uint32_t max_frames = kRunFrames;
  for (const RecordedGroup::SizeChange& size : group.sizes) {
    max_frames = std::max(max_frames, size.frames);
  }
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<BucketedPolicy> policy,
                           BucketedPolicy::Create({.lru = lru,
                                                   .max_frames = max_frames,
                                                   .num_pages = trace.num_pages(),
                                                   .max_step_pages = trace.max_step_pages()}));
  std::vector<uint8_t> is_hit(trace.max_step_pages());
  size_t next_size = 0;
  for (uint32_t step = 0; step < trace.num_steps(); ++step) {
    for (; next_size < group.sizes.size() && group.sizes[next_size].step == step; ++next_size) {
      const RecordedGroup::SizeChange& size = group.sizes[next_size];
      if (size.is_pause) {
        policy->Pause();
      } else {
        SPINDLE_RETURN_IF_ERROR(policy->Resize(size.frames));
      }
    }
    const std::span<const uint32_t> pages = trace.step(step);
    const uint32_t hits =
        policy->StepWith(group.caching[step], pages, std::span(is_hit).first(pages.size()));
    if (step >= trace.warmup_steps()) {
      result.count += {pages.size(), hits};
    }
    if (!group.was_hit.empty()) {
      const auto recorded = std::span(group.was_hit).subspan(trace.step_begin(step), pages.size());
      for (size_t i = 0; i < pages.size(); ++i) {
        result.differences += is_hit[i] != recorded[i] ? 1U : 0U;
      }
      result.compared += pages.size();
    }
  }
  return result;
}

}  // namespace spindle::kv::sim
