#include "serving/answer_memory.h"

#include <chrono>

#include <fmt/format.h>

namespace spindle::serving {

ApiError AnswerMemoryFull(uint64_t wanted_bytes, const ByteQuota& quota) {
  ApiError error;
  if (wanted_bytes > quota.max_bytes()) {
    error = InvalidRequest(
        "answer_too_large",
        "",
        fmt::format("The answer takes more than the {} bytes of memory that the server has for "
                    "answers (--answer-memory): stream it, or ask for fewer choices or "
                    "log-probabilities.",
                    quota.max_bytes()));
  } else {
    error = MakeError(429,
                      "memory_full",
                      fmt::format("The answer takes {} bytes of memory; others hold {} of the {} "
                                  "bytes that the server has for answers (--answer-memory). Try "
                                  "again later, or stream the answer.",
                                  wanted_bytes,
                                  quota.used_bytes(),
                                  quota.max_bytes()));
    error.retry_after = std::chrono::seconds(1);
    error.should_retry = true;
  }
  error.extras = {{"needed_bytes", static_cast<int64_t>(wanted_bytes)},
                  {"capacity_bytes", static_cast<int64_t>(quota.max_bytes())}};
  return error;
}

}  // namespace spindle::serving
