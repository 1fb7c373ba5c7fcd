// Options of the engine: batch shape, queues, order, deadlines. Thread-safety: plain values, pure
// functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/clock.h"
#include "engine/sparse_decode.h"
#include "sparse/algorithm_set.h"

namespace spindle::engine {

enum class SchedulingPolicy : uint8_t { kPriority, kFcfs };

struct EngineOptions {
  uint32_t max_num_seqs = 16;             // sequences decoding together, ≥ 1; --max-num-seqs
  uint32_t max_num_batched_tokens = 512;  // rows of one step, ≥ 64; --max-num-batched-tokens
  bool chunked_prefill = true;            // --enable-chunked-prefill; off: a prompt is one step
  // Look up and publish prompt stripes; --enable-prefix-caching. REQUIRES: as
  // KvOptions::prefix_cache.
  bool prefix_cache = true;
  uint32_t max_queue_size = 64;       // waiting requests, ≥ 1; --max-queue-size
  uint64_t max_queue_tokens = 65536;  // prompt tokens waiting; --max-queue-tokens
  SchedulingPolicy policy = SchedulingPolicy::kPriority;  // --scheduling-policy
  Duration priority_aging = std::chrono::seconds(10);     // one class per …; --priority-aging
  Duration queue_timeout{0};                              // 0 = none; --queue-timeout
  Duration request_timeout{0};                            // 0 = none; --request-timeout
  Duration stream_stall_timeout =
      std::chrono::seconds(60);  // paused by a slow reader; --stream-stall-timeout
  // Events a stream holds before its request pauses, [1, 65536]; a request with n choices has room
  // for at least n + 64.
  uint32_t stream_capacity_events = 256;
  SparseDecode decode = {};              // of requests that name no algorithm
  sparse::AlgorithmSet algorithms = {};  // those that requests may name
  float buffer_ratio = 5.0F;             // of requests that name none, 0 … 64; --kv-buffer-ratio
};

// Rows of the largest step that the options allow.
struct StepBounds {
  uint32_t max_rows;
  uint32_t max_logit_rows;
  uint32_t max_selections;  // rows, and blocks of sparse prompts, that choose what they attend to
};

[[nodiscard]] StepBounds StepBoundsOf(const EngineOptions& options, uint32_t max_model_len);

// ERRORS: kInvalidArgument naming the field, its value and its range.
[[nodiscard]] absl::Status ValidateOptions(const EngineOptions& options);

}  // namespace spindle::engine
