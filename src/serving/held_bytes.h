// What parts of requests and answers take in memory, for those who count it. Thread-safety: pure
// functions.
#pragma once

#include <cstdint>

#include "serving/answer_memory.h"
#include "serving/completion_service.h"
#include "serving/generation.h"

namespace spindle::serving {

// What a request and its generation take at most beside the engine's part and what takes leases:
// `max_choices` of one request.
[[nodiscard]] inline constexpr uint64_t RequestBytes(uint32_t max_choices) {
  constexpr uint64_t kFixedBytes = 8192;
  constexpr uint64_t kChoiceBytes = 1024;  // of the generation and of its answer
  return kFixedBytes + kSmallAnswerBytes + uint64_t{max_choices} * kChoiceBytes;
}

// Lists and texts of a request, prompt tokens excluded, in all copies that exist while it runs.
[[nodiscard]] uint64_t ParameterBytes(const PreparedRequest& request);

[[nodiscard]] uint64_t HeldBytes(const DeltaEvent& event);

}  // namespace spindle::serving
