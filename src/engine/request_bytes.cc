#include "engine/request_bytes.h"

#include <algorithm>

#include "engine/output_stream.h"
#include "engine/request.h"
#include "engine/scheduler_policy.h"

namespace spindle::engine {
namespace {

// A prompt token and its share of a stripe's key: the request's, and the running choice's.
constexpr uint64_t kTokenBytes = sizeof(TokenId) + 1;
// Of the counts behind penalties: a distinct token, and its places in a table that is at most half
// full and a power of two.
constexpr uint64_t kCountBytes = sizeof(sampling::TokenCounts::Entry) + 4 * sizeof(uint32_t);
// Twenty alternatives of an event, in an allocation.
constexpr uint64_t kAlternativesBytes = 20 * sizeof(TopLogprob) + 16;

// A sequence can be preempted by one of every class above its own.
uint64_t StartedSequences(const EngineOptions& options) {
  return uint64_t{kNumPriorityClasses} * options.max_num_seqs;
}

}  // namespace

RequestBounds RequestBoundsOf(const EngineOptions& options, uint32_t max_model_len) {
  const uint64_t started = StartedSequences(options);
  // An empty queue takes one of any length.
  return {.num_requests = started + options.max_queue_size,
          .num_tokens = std::max<uint64_t>(options.max_queue_tokens, max_model_len) +
                        started * max_model_len};
}

uint64_t RequestBytes(const EngineOptions& options,
                      uint32_t max_model_len,
                      uint32_t max_choices,
                      uint32_t num_layers) {
  const RequestBounds bounds = RequestBoundsOf(options, max_model_len);
  const uint64_t started_tokens = StartedSequences(options) * max_model_len;
  const uint64_t events =
      std::max<uint64_t>(options.stream_capacity_events, uint64_t{max_choices} + 64) + max_choices;
  // Of a running choice, and of the ended ones of its request.
  const uint64_t layer_stats =
      StartedSequences(options) * 2 * num_layers * sizeof(sparse::LayerUse);
  return bounds.num_tokens * kTokenBytes + started_tokens * (kTokenBytes + kCountBytes) +
         layer_stats +
         bounds.num_requests * (sizeof(Request) + sizeof(StreamState) +
                                events * (sizeof(StreamEvent) + kAlternativesBytes) +
                                uint64_t{max_choices} * sizeof(Choice));
}

}  // namespace spindle::engine
