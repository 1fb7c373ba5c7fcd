// Memory that answers share while they wait for their end or for their reader; long lists of
// parameters take of it too. Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "base/byte_quota.h"
#include "serving/api_error.h"

namespace spindle::serving {

// So much of an answer, or of parameters, is not counted: it belongs to its connection or request.
inline constexpr uint64_t kSmallAnswerBytes = uint64_t{16} << 10;

// Somebody who wants to hold `wanted_bytes` in all is refused: 400 answer_too_large when the whole
// quota is less, else 429 memory_full.
[[nodiscard]] ApiError AnswerMemoryFull(uint64_t wanted_bytes, const ByteQuota& quota);

}  // namespace spindle::serving
