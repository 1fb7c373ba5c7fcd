// The metric families of the fast tier: what steps found in it, copied to it and waited for. The
// series exist, at zero, without a fast tier too. Thread-safety: thread-safe. Borrows the registry.
#pragma once

#include <cstdint>

#include "engine/fast_load.h"
#include "engine/kv_metrics.h"
#include "metrics/metrics.h"

namespace spindle::engine {

class FastMetrics {
 public:
  explicit FastMetrics(metrics::Registry& registry);

  // At the end of a step.
  void Publish(const FastLoad& load);

  metrics::Counter skipped_sequences;  // decoding sequences that left a step to others
  metrics::Counter pauses;
  metrics::Gauge paused_sequences;

 private:
  FollowingCounter moved_pages_;
  FollowingCounter moved_bytes_;
  FollowingCounter hits_;
  FollowingCounter misses_;
  FollowingCounter streamed_;
  FollowingCounter refaults_;
  FollowingCounter multi_pass_;
  metrics::Counter stall_seconds_;
  uint64_t stall_ns_ = 0;
  metrics::Gauge capacity_bytes_;
  metrics::Gauge owned_bytes_;
  metrics::Gauge index_bytes_;
  metrics::Gauge free_bytes_;
};

}  // namespace spindle::engine
