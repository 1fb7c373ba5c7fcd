#include "base/clock.h"

namespace spindle {
namespace {

class SteadyClockImpl final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

const Clock& SteadyClock() {
  static const SteadyClockImpl clock;
  return clock;
}

}  // namespace spindle
