// Keeps what saved sessions need while a store is collected without a server. Thread-safety: call
// from one thread; it blocks.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kv/disk/disk_store.h"

namespace spindle::kv::disk {

struct SessionRetention {
  uint64_t sessions = 0;  // whose stripes are retained now
  uint64_t ended = 0;     // whose time is over: theirs are not
  uint64_t damaged = 0;   // manifests that cannot be read
};

// Retains the stripes of all saved sessions, as a server does that runs. `now_s`: seconds of the
// wall clock. ERRORS: kUnavailable (device). REQUIRES: IoMode::kInline; nothing is pending.
[[nodiscard]] absl::StatusOr<SessionRetention> RetainSessions(DiskStore& store, uint64_t now_s);

}  // namespace spindle::kv::disk
