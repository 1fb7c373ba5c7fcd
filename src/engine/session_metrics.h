// The metric families of sessions, open tails and spills over the disk tier. All series exist, at
// zero, once the object does. Thread-safety: as EngineMetrics.
#pragma once

#include <array>

#include "engine/kv_metrics.h"
#include "kv/disk_tier.h"
#include "metrics/metrics.h"

namespace spindle::engine {

class SessionMetrics {
 public:
  explicit SessionMetrics(metrics::Registry& registry);

  void Publish(const kv::DiskTierStats& stats);

 private:
  metrics::Gauge on_disk_;
  metrics::Gauge resident_;
  metrics::Gauge retained_bytes_;
  std::array<FollowingCounter, 3> saves_;     // complete, partial, failed
  std::array<FollowingCounter, 3> restores_;  // the same
  std::array<FollowingCounter, kv::kNumSessionEnds> ends_;
  FollowingCounter tail_tokens_;
  FollowingCounter spills_;
  FollowingCounter spilled_stripes_;
};

}  // namespace spindle::engine
