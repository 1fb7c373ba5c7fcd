// Protobuf messages ↔ serving values.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "spindle/v1/inference.pb.h"

#include "serving/completion_service.h"
#include "serving/generation.h"

namespace spindle::server {

using InputCase = v1::GenerateRequest::InputCase;

// What of a generation the client wants to see, and how it asked.
struct OutputView {
  bool text = true;
  bool token_ids = false;
  InputCase input = v1::GenerateRequest::INPUT_NOT_SET;
};

[[nodiscard]] OutputView ViewOf(const v1::GenerateRequest& request);

// The error with the names of the message's fields ("sampling.temperature") instead of those of the
// HTTP API. Errors of `chat_json` speak of the JSON and stay.
[[nodiscard]] serving::ApiError WithGrpcNames(serving::ApiError error, InputCase input);

// Validates and tokenises; errors as WithGrpcNames gives them. Constraint and most sparse fields
// are refused until they work; so are sampling, stopping, kv and log-probabilities beside
// chat_json, which has its own.
[[nodiscard]] serving::Result<serving::PreparedRequest> PrepareGenerate(
    const v1::GenerateRequest& request,
    const serving::Caller& caller,
    const serving::CompletionService& service);

// Fills `out` (request id included); false for events that have no message (none today but errors).
bool ToMessage(const serving::GenerationEvent& event,
               const std::string& request_id,
               const OutputView& view,
               v1::GenerateEvent* out);

// Adds an event to the answer of a unary call; returns the memory that this took.
uint64_t Accumulate(const serving::GenerationEvent& event,
                    const OutputView& view,
                    v1::GenerateResult* result);

}  // namespace spindle::server
