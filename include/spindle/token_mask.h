// A set of allowed next tokens that depends on what was generated: the seam between grammars and
// sampling. Thread-safety: one object per choice, used by one thread at a time. Implemented in
// serving over text.
#pragma once

#include <cstdint>
#include <span>

namespace spindle {

class TokenMask {
 public:
  virtual ~TokenMask() = default;

  // Bit t of words[t / 32] = token t is allowed next. `words` holds ceil(vocabulary / 32) entries.
  // Returns false when no token is allowed (a dead end).
  [[nodiscard]] virtual bool Compute(std::span<uint32_t> words) = 0;

  // Moves on by one sampled token. REQUIRES: the token was allowed.
  virtual void Accept(int32_t token) = 0;
};

}  // namespace spindle
