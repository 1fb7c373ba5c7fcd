// Whether the disk tier may be used. Counts errors and full devices; too many errors switch the
// tier off (degraded) until a probe of the device succeeds, a full device stops stores for a while
// (read-only). Says when to look again.
//
// A clock that is set back ends waits early rather than late. Thread-compatible; pure over the
// times given. Borrows the options.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "kv/disk/disk_options.h"

namespace spindle::kv::disk {

class TierHealth {
 public:
  explicit TierHealth(const DiskOptions& options) : options_(options) {
    errors_.reserve(options.max_errors);
  }

  // Never kOff.
  [[nodiscard]] TierState state(TimePoint now) const;

  [[nodiscard]] bool degraded() const { return degraded_; }

  // True when this error is one too many: the tier is degraded from now on.
  bool CountError(TimePoint now);

  // Stores rest from now on. True when they did not before.
  bool PauseStores(TimePoint now);

  // Degraded, and it is time to probe the device.
  [[nodiscard]] bool ProbeDue(TimePoint now) const;

  // REQUIRES of both: degraded.
  void ProbePassed(TimePoint now);
  void ProbeFailed(TimePoint now);

  // From the beginning of the outage or its last probe to the next one. REQUIRES: degraded.
  [[nodiscard]] Duration probe_wait() const { return probe_wait_; }

  // When the next probe is due, or stores may go on.
  [[nodiscard]] std::optional<TimePoint> NextChange(TimePoint now) const;

 private:
  const DiskOptions& options_;
  std::vector<TimePoint> errors_;  // within the window
  std::optional<TimePoint> paused_since_;
  bool degraded_ = false;
  TimePoint waiting_since_{};  // while degraded
  Duration probe_wait_{};
  std::optional<TimePoint> recovered_at_;
};

}  // namespace spindle::kv::disk
