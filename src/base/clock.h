// Monotonic time behind an interface, so that schedulers run under a virtual clock in tests.
// Thread-safety: thread-safe.
#pragma once

#include <atomic>
#include <chrono>

namespace spindle {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::nanoseconds;

class Clock {
 public:
  virtual ~Clock() = default;

  [[nodiscard]] virtual TimePoint Now() const = 0;
};

// The process-wide steady clock.
[[nodiscard]] const Clock& SteadyClock();

// Moves only when told to.
class VirtualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override { return TimePoint(Duration(ticks_.load())); }

  void Advance(Duration by) { ticks_.fetch_add(by.count()); }

 private:
  std::atomic<Duration::rep> ticks_{1};
};

// Seconds as a double, for metrics and logs.
[[nodiscard]] inline double ToSeconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace spindle
