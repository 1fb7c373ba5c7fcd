#include "serving/serving_metrics.h"

namespace spindle::serving {
namespace {

constexpr const char* kInvalidRequestReason = "invalid_request";
constexpr const char* kReasons[] = {
    kInvalidRequestReason,
    "context_length_exceeded",
    "kv_capacity_exceeded",
    "answer_too_large",
    "memory_full",
    "queue_full",
    "model_loading",
    "shutting_down",
    "generation_timeout",
    "key_concurrency_exceeded",
    "rate_limit_exceeded",
    "internal_error",
};

// Bucket bounds that vLLM's dashboards expect.
const std::vector<double>& FirstTokenBounds() {
  static const std::vector<double> bounds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                             0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                             20,    40,    80,   160,  640,  2560};
  return bounds;
}

const std::vector<double>& TokenGapBounds() {
  static const std::vector<double> bounds = {0.01,
                                             0.025,
                                             0.05,
                                             0.075,
                                             0.1,
                                             0.15,
                                             0.2,
                                             0.3,
                                             0.4,
                                             0.5,
                                             0.75,
                                             1,
                                             2.5,
                                             5,
                                             7.5,
                                             10,
                                             20,
                                             40,
                                             80};
  return bounds;
}

const std::vector<double>& RequestBounds() {
  static const std::vector<double> bounds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                             30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
  return bounds;
}

}  // namespace

ServingMetrics::ServingMetrics(metrics::Registry& registry)
    : time_to_first_token_(registry.AddHistogram(
          "vllm:time_to_first_token_seconds",
          "From the last body byte received to the first token handed to the transport.",
          FirstTokenBounds(),
          metrics::EngineLabels())),
      inter_token_latency_(registry.AddHistogram("vllm:inter_token_latency_seconds",
                                                 "Gap between two tokens of a choice.",
                                                 TokenGapBounds(),
                                                 metrics::EngineLabels())),
      time_per_output_token_(
          registry.AddHistogram("vllm:request_time_per_output_token_seconds",
                                "Mean gap between the tokens of a finished choice.",
                                TokenGapBounds(),
                                metrics::EngineLabels())),
      e2e_latency_(registry.AddHistogram("vllm:e2e_request_latency_seconds",
                                         "From the last body byte received to the end.",
                                         RequestBounds(),
                                         metrics::EngineLabels())),
      ignored_fields_(registry.AddCounter("spindle_ignored_fields_total",
                                          "Unknown request fields that were ignored.")) {
  for (const char* reason : kReasons) {
    rejected_[reason] = registry.AddCounter("spindle_requests_rejected_total",
                                            "Requests refused before generation.",
                                            {{"reason", reason}});
  }
}

void ServingMetrics::Rejected(const ApiError& error) const {
  auto counter = rejected_.find(error.code);
  if (counter == rejected_.end()) {
    counter = rejected_.find(kInvalidRequestReason);
  }
  counter->second.Add();
}

void ServingMetrics::IgnoredFields(size_t count) const {
  ignored_fields_.Add(static_cast<double>(count));
}

void ServingMetrics::FirstToken(Duration since_received) const {
  time_to_first_token_.Observe(ToSeconds(since_received));
}

void ServingMetrics::NextToken(Duration since_previous) const {
  inter_token_latency_.Observe(ToSeconds(since_previous));
}

void ServingMetrics::TimePerOutputToken(Duration mean) const {
  time_per_output_token_.Observe(ToSeconds(mean));
}

void ServingMetrics::RequestEnded(Duration since_received) const {
  e2e_latency_.Observe(ToSeconds(since_received));
}

}  // namespace spindle::serving
