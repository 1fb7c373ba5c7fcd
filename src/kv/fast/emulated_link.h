// A link between host and fast memory that does not exist: it only says when a copy would be done
// if the way had a given rate and latency. Transfers are served one after the other, as on one
// copy engine; the latency of one overlaps with the bytes of others. Figures measured with it are
// emulated and must be labelled so.
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace spindle::kv {

struct LinkOptions {
  float gigabytes_per_second = 25.0F;  // 10^9 bytes; 0.001 … 10000
  uint32_t latency_us = 10;            // 0 … 1000000
};

// ERRORS: kInvalidArgument naming the flag and its range.
[[nodiscard]] absl::Status ValidateLinkOptions(const LinkOptions& options);

class EmulatedLink {
 public:
  // REQUIRES: valid options.
  explicit EmulatedLink(const LinkOptions& options) : options_(options) {}

  // A transfer of `bytes` is asked for at `now`; returns when it would be complete.
  [[nodiscard]] TimePoint Send(TimePoint now, uint64_t bytes);

  // Returns at `time` of the steady clock, or soon after Close, and how long it waited.
  Duration Await(TimePoint time);

  // Nobody waits any more, and nobody will: the bytes were never away.
  void Close();

  // Time that the link has been busy, from the first transfer on.
  [[nodiscard]] Duration busy() const;

 private:
  const LinkOptions options_;
  mutable Mutex mutex_;
  CondVar closing_;
  bool closed_ SPINDLE_GUARDED_BY(mutex_) = false;
  TimePoint free_at_ SPINDLE_GUARDED_BY(mutex_){};
  Duration busy_ SPINDLE_GUARDED_BY(mutex_){};
};

}  // namespace spindle::kv
