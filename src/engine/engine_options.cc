#include "engine/engine_options.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/status_macros.h"
#include "engine/scheduler_policy.h"

namespace spindle::engine {
namespace {

absl::Status CheckRange(std::string_view name, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(std::string(name) + " is " + std::to_string(value) +
                                    ", must be in [" + std::to_string(low) + ", " +
                                    std::to_string(high) + "]");
}

absl::Status CheckNotNegative(std::string_view name, Duration value) {
  if (value >= Duration::zero()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(std::string(name) + " is negative, must be 0 or more");
}

}  // namespace

StepBounds StepBoundsOf(const EngineOptions& options, uint32_t max_model_len) {
  const uint32_t prefill_rows = options.chunked_prefill
                                    ? options.max_num_batched_tokens
                                    : std::max(options.max_num_batched_tokens, max_model_len);
  // Prefills get at least one chunk beside any number of decode rows.
  const uint32_t max_rows = std::max(prefill_rows, sparse::kPrefillBlockTokens) +
                            std::min(options.max_num_seqs, prefill_rows);
  return {.max_rows = max_rows,
          .max_logit_rows = options.max_num_seqs + kMaxPromptLogitRows,
          .max_selections =
              options.max_num_seqs + kMaxReplayRows + max_rows / sparse::kPrefillBlockTokens};
}

absl::Status ValidateOptions(const EngineOptions& options) {
  SPINDLE_RETURN_IF_ERROR(CheckRange("max_num_seqs", options.max_num_seqs, 1, 4096));
  SPINDLE_RETURN_IF_ERROR(
      CheckRange("max_num_batched_tokens", options.max_num_batched_tokens, 64, 1U << 20));
  SPINDLE_RETURN_IF_ERROR(CheckRange("max_queue_size", options.max_queue_size, 1, 1U << 20));
  SPINDLE_RETURN_IF_ERROR(
      CheckRange("max_queue_tokens", options.max_queue_tokens, 1, uint64_t{1} << 40));
  SPINDLE_RETURN_IF_ERROR(
      CheckRange("stream_capacity_events", options.stream_capacity_events, 1, 65536));
  SPINDLE_RETURN_IF_ERROR(CheckNotNegative("priority_aging", options.priority_aging));
  SPINDLE_RETURN_IF_ERROR(CheckNotNegative("queue_timeout", options.queue_timeout));
  SPINDLE_RETURN_IF_ERROR(CheckNotNegative("request_timeout", options.request_timeout));
  if (options.stream_stall_timeout <= Duration::zero()) {
    return absl::InvalidArgumentError("stream_stall_timeout must be more than 0");
  }
  return absl::OkStatus();
}

}  // namespace spindle::engine
