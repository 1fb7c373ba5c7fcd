// The metric families that the engine moves: the vLLM-compatible ones and the router, scheduler and
// tier groups of our own. All series exist, at zero, once the object does.
// Thread-safety: thread-safe. Updates never block or allocate. Borrows the registry.
#pragma once

#include <array>
#include <cstdint>

#include "engine/fast_metrics.h"
#include "engine/kv_metrics.h"
#include "engine/output_stream.h"
#include "engine/session_metrics.h"
#include "engine/sparse_metrics.h"
#include "engine/trace_metrics.h"
#include "kv/disk_tier.h"
#include "kv/kv_store.h"
#include "metrics/metrics.h"

namespace spindle::engine {

// Causes of cancellation as the metrics name them.
inline constexpr size_t kNumCancelCauses = 6;
inline constexpr size_t kNumCancelPhases = 3;

enum class CancelPhase : uint8_t { kQueued, kPrefill, kDecode };

struct StepLoad {
  uint32_t running = 0;           // sequences
  uint32_t waiting_capacity = 0;  // requests and preempted sequences that wait for room
  uint32_t waiting_deferred = 0;  // … for another's prefix or their reader
  uint64_t waiting_tokens = 0;
  double oldest_wait_seconds = 0.0;
};

class EngineMetrics {
 public:
  struct Shape {
    uint32_t max_model_len;
    bool prefix_cache;
    const sparse::AlgorithmSet* algorithms;  // borrowed for the call
  };

  EngineMetrics(metrics::Registry& registry, const kv::KvStore& store, const Shape& shape);

  // At the end of a step, and when the engine falls idle.
  void Publish(const StepLoad& load, const kv::KvStats& stats);
  // The same for the disk tier.
  void PublishDisk(const kv::DiskTierStats& stats);

  // A request ended before it was complete; other causes do not count.
  void CountCancel(CancelPhase phase, EndCause cause) const;

  // Everything below is moved where it happens.
  metrics::Counter prompt_tokens;
  metrics::Counter generation_tokens;
  metrics::Counter prompt_tokens_cached;
  metrics::Counter prefix_queries;
  metrics::Counter prefix_hits;
  metrics::Counter external_queries;  // of the disk tier
  metrics::Counter external_hits;
  metrics::Counter preemptions;
  metrics::Counter stream_stalls;
  std::array<metrics::Counter, 4> success;  // by FinishReason
  std::array<std::array<metrics::Counter, kNumCancelCauses>, kNumCancelPhases> cancelled;

  metrics::Histogram queue_seconds;
  metrics::Histogram prefill_seconds;
  metrics::Histogram decode_seconds;
  metrics::Histogram inference_seconds;
  metrics::Histogram request_prompt_tokens;
  metrics::Histogram request_generation_tokens;
  metrics::Histogram request_max_generation_tokens;
  metrics::Histogram params_max_tokens;
  metrics::Histogram params_n;
  metrics::Histogram prefill_computed_tokens;
  metrics::Histogram iteration_tokens;

  metrics::Histogram plan_seconds;
  metrics::Histogram forward_seconds;
  metrics::Histogram sample_seconds;
  metrics::Histogram disk_fetch_seconds;
  metrics::Counter fetch_stall_seconds;
  metrics::Histogram batch_sequences;
  metrics::Histogram batch_tokens;
  KvMetrics kv;
  FastMetrics fast;
  SessionMetrics sessions;
  SparseMetrics sparse;
  TraceMetrics trace;

 private:
  void AddRequestFamilies(metrics::Registry& registry, const Shape& shape);
  void AddStepFamilies(metrics::Registry& registry);
  void AddCacheInfo(metrics::Registry& registry, const kv::KvStore& store, const Shape& shape);
  void AddTierFamilies(metrics::Registry& registry, const kv::KvStore& store);

  enum TierState : uint8_t { kCapacity, kCommitted, kBuffered, kPrefix, kFree, kNumStates };

  struct Tier {
    std::array<metrics::Gauge, kNumStates> bytes;
    std::array<metrics::Gauge, kNumStates> pages;
  };

  void AddMoveFamilies(metrics::Registry& registry);

  uint64_t pages_per_stripe_;
  uint64_t stripe_bytes_;
  Tier host_;
  Tier disk_;
  metrics::Gauge disk_metadata_bytes_;
  FollowingCounter host_evicted_pages_;
  FollowingCounter disk_collected_pages_;
  FollowingCounter disk_corrupt_pages_;
  FollowingCounter loaded_pages_;  // disk → host
  FollowingCounter loaded_bytes_;
  FollowingCounter stored_pages_;  // host → disk
  FollowingCounter stored_bytes_;
  metrics::Gauge running_;
  metrics::Gauge waiting_;
  metrics::Gauge waiting_capacity_;
  metrics::Gauge waiting_deferred_;
  metrics::Gauge kv_usage_;
  metrics::Gauge router_running_;
  metrics::Gauge router_queue_;
  metrics::Gauge router_kv_usage_;
  metrics::Gauge queue_tokens_;
  metrics::Gauge queue_oldest_seconds_;
};

}  // namespace spindle::engine
