#include "kv/disk/tier_health.h"

#include <algorithm>

#include "base/status_macros.h"

namespace spindle::kv::disk {
namespace {

// Whether `now` lies within `span` from `since` on. Not if the clock was set back meanwhile.
bool Within(TimePoint now, TimePoint since, Duration span) {
  return now >= since && now - since < span;
}

}  // namespace

TierState TierHealth::state(TimePoint now) const {
  if (degraded_) {
    return TierState::kDegraded;
  }
  return paused_since_.has_value() && Within(now, *paused_since_, options_.full_pause)
             ? TierState::kReadOnly
             : TierState::kOk;
}

bool TierHealth::CountError(TimePoint now) {
  if (degraded_) {
    return false;
  }
  std::erase_if(errors_,
                [&](TimePoint error) { return !Within(now, error, options_.error_window); });
  errors_.push_back(now);
  if (errors_.size() < options_.max_errors) {
    return false;
  }
  degraded_ = true;
  waiting_since_ = now;
  // A device that passes probes but not work must not be tried ever so often.
  const bool again =
      recovered_at_.has_value() && Within(now, *recovered_at_, options_.max_probe_wait);
  probe_wait_ = again ? std::min(2 * probe_wait_, options_.max_probe_wait) : options_.probe_wait;
  return true;
}

bool TierHealth::PauseStores(TimePoint now) {
  const bool begins = state(now) == TierState::kOk;
  paused_since_ = now;
  return begins;
}

bool TierHealth::ProbeDue(TimePoint now) const {
  return degraded_ && !Within(now, waiting_since_, probe_wait_);
}

void TierHealth::ProbePassed(TimePoint now) {
  SPINDLE_CHECK(degraded_);
  degraded_ = false;
  errors_.clear();
  recovered_at_ = now;
}

void TierHealth::ProbeFailed(TimePoint now) {
  SPINDLE_CHECK(degraded_);
  waiting_since_ = now;
  probe_wait_ = std::min(2 * probe_wait_, options_.max_probe_wait);
}

std::optional<TimePoint> TierHealth::NextChange(TimePoint now) const {
  switch (state(now)) {
    case TierState::kDegraded:
      return ProbeDue(now) ? now : waiting_since_ + probe_wait_;
    case TierState::kReadOnly:
      return *paused_since_ + options_.full_pause;
    default:
      return std::nullopt;
  }
}

}  // namespace spindle::kv::disk
