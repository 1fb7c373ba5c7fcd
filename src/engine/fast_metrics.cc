#include "engine/fast_metrics.h"

namespace spindle::engine {

FastMetrics::FastMetrics(metrics::Registry& registry) {
  const metrics::Labels move = {{"from", "host"}, {"to", "fast"}, {"cause", "fetch"}};
  moved_pages_.counter =
      registry.AddCounter("spindle_kv_moves_total", "Pages moved between tiers.", move);
  moved_bytes_.counter =
      registry.AddCounter("spindle_kv_move_bytes_total", "Bytes moved between tiers.", move);
  hits_.counter = registry.AddCounter("spindle_kv_page_hits_total",
                                      "Pages of a step that were in the fast tier.");
  misses_.counter = registry.AddCounter("spindle_kv_page_misses_total",
                                        "Pages of a step that were copied to the fast tier.");
  streamed_.counter = registry.AddCounter("spindle_kv_page_streams_total",
                                          "Page misses that the fast tier had no room to keep.");
  refaults_.counter = registry.AddCounter(
      "spindle_kv_refaults_total", "Page misses soon after the page had left the fast tier.");
  multi_pass_.counter = registry.AddCounter(
      "spindle_kv_multi_pass_total",
      "Attention of a KV head of a sequence in a layer that took more than one pass.");
  skipped_sequences = registry.AddCounter(
      "spindle_kv_skipped_sequences_total",
      "Decoding sequences that left a step to others, since the fast tier holds not all.");
  pauses = registry.AddCounter(
      "spindle_kv_pauses_total",
      "Sequences that gave up their frames for a while, since pages only went back and forth.");
  paused_sequences =
      registry.AddGauge("spindle_kv_paused_sequences", "Sequences that wait without frames.");
  stall_seconds_ = registry.AddCounter("spindle_kv_fetch_stall_seconds_total",
                                       "Time that requests and steps waited for pages.");
  const auto bytes = [&registry](const char* state) {
    return registry.AddGauge("spindle_kv_tier_bytes",
                             "KV bytes by tier and state.",
                             {{"tier", "fast"}, {"state", state}});
  };
  capacity_bytes_ = bytes("capacity");
  owned_bytes_ = bytes("committed");
  index_bytes_ = bytes("index");
  free_bytes_ = bytes("free");
}

void FastMetrics::Publish(const FastLoad& load) {
  const sparse::MirrorCounters& counters = load.counters;
  moved_pages_.Follow(counters.page_misses);
  moved_bytes_.Follow(counters.bytes_copied);
  hits_.Follow(counters.page_hits);
  misses_.Follow(counters.page_misses);
  streamed_.Follow(counters.pages_streamed);
  refaults_.Follow(counters.page_refaults);
  multi_pass_.Follow(counters.multi_pass_heads);
  stall_seconds_.Add(static_cast<double>(counters.stall_ns - stall_ns_) * 1e-9);
  stall_ns_ = counters.stall_ns;
  capacity_bytes_.Set(static_cast<double>(load.capacity_bytes));
  owned_bytes_.Set(static_cast<double>(load.capacity_bytes - load.free_bytes));
  index_bytes_.Set(static_cast<double>(load.index_bytes));
  free_bytes_.Set(static_cast<double>(load.free_bytes));
}

}  // namespace spindle::engine
