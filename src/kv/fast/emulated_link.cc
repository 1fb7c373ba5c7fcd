#include "kv/fast/emulated_link.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace spindle::kv {
namespace {

constexpr float kMinRate = 0.001F;
constexpr float kMaxRate = 10000;
constexpr uint32_t kMaxLatencyUs = 1'000'000;
// Shorter waits are spun: a sleeping thread wakes later than that.
constexpr Duration kSpin = std::chrono::microseconds(100);

}  // namespace

absl::Status ValidateLinkOptions(const LinkOptions& options) {
  // Written so that a NaN is refused.
  if (!(options.gigabytes_per_second >= kMinRate && options.gigabytes_per_second <= kMaxRate)) {
    return absl::InvalidArgumentError("sim-link-gbps must be in 0.001..10000 (10^9 bytes/s), got " +
                                      std::to_string(options.gigabytes_per_second));
  }
  if (options.latency_us > kMaxLatencyUs) {
    return absl::InvalidArgumentError("sim-link-latency-us must be in 0..1000000, got " +
                                      std::to_string(options.latency_us));
  }
  return absl::OkStatus();
}

TimePoint EmulatedLink::Send(TimePoint now, uint64_t bytes) {
  const Duration transfer(static_cast<Duration::rep>(
      static_cast<double>(bytes) / static_cast<double>(options_.gigabytes_per_second)));
  const MutexLock lock(mutex_);
  free_at_ = std::max(free_at_, now) + transfer;
  busy_ += transfer;
  return free_at_ + std::chrono::microseconds(options_.latency_us);
}

Duration EmulatedLink::Await(TimePoint time) {
  const TimePoint begin = SteadyClock().Now();
  TimePoint now = begin;
  for (; now < time; now = SteadyClock().Now()) {
    if (time - now > kSpin) {
      const MutexLock lock(mutex_);
      if (closed_) {
        break;
      }
      closing_.WaitUntil(mutex_, time - kSpin / 2);
    }
  }
  return now - begin;
}

void EmulatedLink::Close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  closing_.NotifyAll();
}

Duration EmulatedLink::busy() const {
  const MutexLock lock(mutex_);
  return busy_;
}

}  // namespace spindle::kv
