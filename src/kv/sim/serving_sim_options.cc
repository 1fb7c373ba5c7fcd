#include <string>

#include "base/status_macros.h"
#include "kv/sim/serving_sim.h"

namespace spindle::kv::sim {
namespace {

absl::Status OutOfRange(const char* name, const std::string& range) {
  return absl::InvalidArgumentError(std::string(name) + " must be " + range);
}

}  // namespace

absl::Status ValidateServingSimOptions(const ServingSimOptions& options) {
  SPINDLE_RETURN_IF_ERROR(ValidateGeometry(options.geometry));
  if (!(options.arrivals_per_second > 0) || options.arrivals_per_second > 1e6) {
    return OutOfRange("arrivals_per_second", "above 0 and at most 1000000");
  }
  if (options.arrival_time <= Duration(0) || options.drain_time < Duration(0)) {
    return OutOfRange("arrival_time and drain_time", "positive");
  }
  if (options.min_prompt_tokens < 1 || options.min_prompt_tokens > options.max_prompt_tokens ||
      options.max_prompt_tokens > (1U << 20)) {
    return OutOfRange("prompt tokens", "in 1..1048576, the smallest first");
  }
  if (options.min_output_tokens < 1 || options.min_output_tokens > options.max_output_tokens ||
      options.max_output_tokens > (1U << 20)) {
    return OutOfRange("output tokens", "in 1..1048576, the smallest first");
  }
  if (options.num_shared_prompts < 1) {
    return OutOfRange("num_shared_prompts", "at least 1");
  }
  if (options.sampled_groups < 1 ||
      options.sampled_groups > options.geometry.num_layers * options.geometry.num_kv_heads) {
    return OutOfRange("sampled_groups", "in 1..layers x KV heads");
  }
  if (options.selected_pages < 1 || options.selected_pages > 65528 / 16) {
    return OutOfRange("selected_pages", "in 1..4095");
  }
  if (!(options.buffer_ratio >= 0) || options.buffer_ratio > 15) {
    return OutOfRange("buffer_ratio", "in 0..15");
  }
  if (options.max_running < 1 || options.prefill_chunk_tokens < kStripeTokens ||
      options.prefill_chunk_tokens % kStripeTokens != 0) {
    return OutOfRange("max_running and prefill_chunk_tokens",
                      "at least 1, and a positive multiple of 64");
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv::sim
