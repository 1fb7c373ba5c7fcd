#include "engine/trace_metrics.h"

namespace spindle::engine {

TraceMetrics::TraceMetrics(metrics::Registry& registry) {
  const auto records = [&registry](const char* trace, const char* state) {
    return registry.AddCounter("spindle_kv_trace_records_total",
                               "Records of page accesses, and requests, by what became of them.",
                               {{"trace", trace}, {"state", state}});
  };
  kept_pages_.counter = records("pages", "kept");
  dropped_pages_.counter = records("pages", "dropped");
  kept_requests_.counter = records("requests", "kept");
  dropped_requests_.counter = records("requests", "dropped");
}

void TraceMetrics::Publish(const kv::KvTraceStats& stats) {
  kept_pages_.Follow(stats.kept_page_records);
  dropped_pages_.Follow(stats.dropped_page_records);
  kept_requests_.Follow(stats.kept_requests);
  dropped_requests_.Follow(stats.dropped_requests);
}

}  // namespace spindle::engine
