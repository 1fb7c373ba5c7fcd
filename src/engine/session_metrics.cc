#include "engine/session_metrics.h"

namespace spindle::engine {

SessionMetrics::SessionMetrics(metrics::Registry& registry) {
  const auto gauge = [&registry](const char* state) {
    return registry.AddGauge("spindle_kv_sessions",
                             "Sessions of the disk tier; resident: restored to host memory.",
                             {{"state", state}});
  };
  on_disk_ = gauge("disk");
  resident_ = gauge("resident");
  retained_bytes_ =
      registry.AddGauge("spindle_kv_session_bytes", "Bytes of stripes that sessions keep on disk.");
  constexpr std::array<const char*, 3> kResults = {"complete", "partial", "failed"};
  for (size_t i = 0; i < kResults.size(); ++i) {
    saves_[i].counter = registry.AddCounter(
        "spindle_kv_session_saves_total", "Sessions written.", {{"result", kResults[i]}});
    restores_[i].counter = registry.AddCounter("spindle_kv_session_restores_total",
                                               "Sessions brought back to host memory.",
                                               {{"result", kResults[i]}});
  }
  constexpr std::array<const char*, kv::kNumSessionEnds> kCauses = {
      "deleted", "expired", "number", "space", "damaged"};
  for (size_t i = 0; i < kCauses.size(); ++i) {
    ends_[i].counter = registry.AddCounter(
        "spindle_kv_session_ends_total", "Sessions removed, by cause.", {{"cause", kCauses[i]}});
  }
  tail_tokens_.counter =
      registry.AddCounter("spindle_kv_tail_tokens_total",
                          "Tokens of saved open stripes that were used instead of computed.");
  spills_.counter = registry.AddCounter("spindle_kv_spills_total",
                                        "Preempted sequences that were written to disk.");
  spilled_stripes_.counter = registry.AddCounter(
      "spindle_kv_spilled_stripes_total", "Stripes of preempted sequences that are on disk.");
}

void SessionMetrics::Publish(const kv::DiskTierStats& stats) {
  const kv::SessionStats& sessions = stats.sessions;
  on_disk_.Set(static_cast<double>(sessions.sessions));
  resident_.Set(static_cast<double>(sessions.resident));
  retained_bytes_.Set(static_cast<double>(sessions.retained_bytes));
  saves_[0].Follow(sessions.saves_complete);
  saves_[1].Follow(sessions.saves_partial);
  saves_[2].Follow(sessions.saves_failed);
  restores_[0].Follow(sessions.restores_complete);
  restores_[1].Follow(sessions.restores_partial);
  restores_[2].Follow(sessions.restores_failed);
  for (size_t i = 0; i < ends_.size(); ++i) {
    ends_[i].Follow(sessions.ended[i]);
  }
  tail_tokens_.Follow(stats.tail_tokens);
  spills_.Follow(stats.spills);
  spilled_stripes_.Follow(stats.spilled_stripes);
}

}  // namespace spindle::engine
