// Measured rates of the engine, as moving averages: how long will the queue take, how long are
// outputs. Thread-safety: thread-safe; Observe… from the engine thread only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace spindle::engine {

class Throughput {
 public:
  explicit Throughput(uint32_t max_num_seqs) : max_num_seqs_(max_num_seqs) {}

  // A step computed `tokens` prompt rows.
  void ObservePrefill(uint32_t tokens, Duration step_time);
  // A choice ended by itself after `output_tokens`, `service_time` after its admission.
  void ObserveCompletion(uint32_t output_tokens, Duration service_time);

  // 0 before the first prefill.
  [[nodiscard]] double prefill_tokens_per_second() const {
    return prefill_tokens_per_second_.load();
  }

  // 0 before the first completion.
  [[nodiscard]] double mean_output_tokens() const { return mean_output_tokens_.load(); }

  // When a refused client should come back: the prefill time of the tokens in front of it plus
  // their share of the slots, in [1 s, 60 s] (the range clients are told).
  [[nodiscard]] std::chrono::milliseconds RetryAfter(uint32_t waiting_requests,
                                                     uint64_t waiting_tokens) const;

 private:
  const uint32_t max_num_seqs_;
  std::atomic<double> prefill_tokens_per_second_{0.0};
  std::atomic<double> mean_output_tokens_{0.0};
  std::atomic<double> mean_service_seconds_{0.0};
};

}  // namespace spindle::engine
