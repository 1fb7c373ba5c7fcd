// Protobuf messages ↔ serving values.
// Thread-safety: pure functions.
#pragma once

#include "spindle/v1/inference.pb.h"

#include "serving/completion_service.h"
#include "serving/generation.h"

namespace spindle::server {

// What of a generation the client wants to see.
struct OutputView {
  bool text = true;
  bool token_ids = false;
};

[[nodiscard]] OutputView ViewOf(const v1::OutputOptions& options);

// Validates and tokenises. Constraint, sparse and kv fields are refused until they work.
[[nodiscard]] serving::Result<serving::PreparedRequest> PrepareGenerate(
    const v1::GenerateRequest& request,
    const serving::Caller& caller,
    const serving::CompletionService& service);

// Fills `out` (request id included); false for events that have no message (none today but errors).
bool ToMessage(const serving::GenerationEvent& event,
               const std::string& request_id,
               const OutputView& view,
               v1::GenerateEvent* out);

// Adds an event to the answer of a unary call.
void Accumulate(const serving::GenerationEvent& event,
                const OutputView& view,
                v1::GenerateResult* result);

}  // namespace spindle::server
