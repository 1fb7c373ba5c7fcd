#include "engine/throughput.h"

#include <algorithm>

namespace spindle::engine {
namespace {

// Half of the weight lies on the last 11 observations: quick to follow a change of load, slow
// enough not to jump with one odd request.
constexpr double kNewShare = 1.0 / 16.0;

void Average(std::atomic<double>& mean, double value) {
  const double old = mean.load();
  mean.store(old == 0.0 ? value : old + kNewShare * (value - old));
}

}  // namespace

void Throughput::ObservePrefill(uint32_t tokens, Duration step_time) {
  if (tokens > 0 && step_time > Duration::zero()) {
    Average(prefill_tokens_per_second_, tokens / ToSeconds(step_time));
  }
}

void Throughput::ObserveCompletion(uint32_t output_tokens, Duration service_time) {
  Average(mean_output_tokens_, output_tokens);
  Average(mean_service_seconds_, ToSeconds(service_time));
}

std::chrono::milliseconds Throughput::RetryAfter(uint32_t waiting_requests,
                                                 uint64_t waiting_tokens) const {
  const double rate = prefill_tokens_per_second_.load();
  double seconds = waiting_requests * mean_service_seconds_.load() / max_num_seqs_;
  if (rate > 0.0) {
    seconds += static_cast<double>(waiting_tokens) / rate;
  }
  return std::chrono::milliseconds(static_cast<int64_t>(std::clamp(seconds, 1.0, 60.0) * 1000.0));
}

}  // namespace spindle::engine
