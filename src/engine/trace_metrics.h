// The metric families of --kv-trace: what was kept and what was dropped. The series exist, at zero,
// without a trace too. Thread-safety: thread-safe. Borrows the registry.
#pragma once

#include "engine/kv_metrics.h"
#include "kv/trace/kv_trace.h"
#include "metrics/metrics.h"

namespace spindle::engine {

class TraceMetrics {
 public:
  explicit TraceMetrics(metrics::Registry& registry);

  // At the end of a step.
  void Publish(const kv::KvTraceStats& stats);

 private:
  FollowingCounter kept_pages_;
  FollowingCounter dropped_pages_;
  FollowingCounter kept_requests_;
  FollowingCounter dropped_requests_;
};

}  // namespace spindle::engine
