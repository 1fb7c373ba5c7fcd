// A page-access trace by cache groups, ready to be simulated: with fixed capacities under any
// policy, or as it was, with the sizes that the server gave, through the fast tier.
// Thread-safety: value types and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kv/sim/page_policy.h"
#include "kv/sim/selection_trace.h"
#include "kv/trace/access_trace.h"

namespace spindle::kv::sim {

// One (request, layer, KV head), from its first record to the end of the request.
struct RecordedGroup {
  // What happened to the group beside selections.
  struct Change {
    enum class Kind : uint8_t {
      kResize,  // has `frames` from now on
      kPause,   // all frames and pages go
      kFork,    // begins with pages of another group, as far as its frames reach
    };

    uint32_t step = 0;  // index of the selection that comes next
    Kind kind = Kind::kResize;
    uint32_t frames = 0;
    // kFork: of the run's groups, and how many selections and changes that one had had by then.
    size_t parent = 0;
    uint32_t parent_steps = 0;
    size_t parent_changes = 0;
  };

  uint32_t request = 0;  // counts requests of the trace, from 0
  uint16_t layer = 0;
  uint8_t head = 0;
  SelectionTrace selections{0, 0};
  // [selections.num_steps()] Step of the server, the same for several selections in one; and what
  // was kept. Only a replay heeds them.
  std::vector<uint32_t> server_steps;
  std::vector<Caching> caching;
  std::vector<Change> changes;  // ascending step
  // [selections.num_accesses()] 1 = was resident; empty when some step has no such record.
  std::vector<uint8_t> was_hit;
};

struct RecordedRun {
  AccessTraceHeader header;
  std::vector<RecordedGroup> groups;  // in order of their first record
  uint32_t num_requests = 0;
  uint32_t num_steps = 0;  // distinct
  AccessTraceReader::Ending ending = AccessTraceReader::Ending::kNotReached;
};

// Most selected pages and groups that one run may hold.
inline constexpr uint64_t kMaxRecordedAccesses = uint64_t{1} << 28;
inline constexpr size_t kMaxRecordedGroups = size_t{1} << 18;

// The first warmup_steps steps of every group are not counted.
// ERRORS: those of AccessTraceReader; kResourceExhausted (more than that).
[[nodiscard]] absl::StatusOr<RecordedRun> LoadRecordedRun(std::span<const uint8_t> bytes,
                                                          uint32_t warmup_steps);

// What the fast tier makes of a group's selections with the recorded sizes.
struct ReplayResult {
  HitCount count;
  uint64_t compared = 0;     // pages of which the trace says whether they were resident
  uint64_t differences = 0;  // of those, how many the replay sees differently
};

// `group`: index. A fork replays its parent up to there as well. ERRORS: those of
// BucketedPolicy::Create.
[[nodiscard]] absl::StatusOr<ReplayResult> ReplayRecordedSizes(const RecordedRun& run,
                                                               size_t group);

}  // namespace spindle::kv::sim
