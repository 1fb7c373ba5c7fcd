// JSON forms of log-probabilities.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "server/http/text_blocks.h"
#include "serving/generation.h"

namespace spindle::server {

// The log-probabilities of one choice, token by token.
//   chat         {"content":[…],"refusal":null}
//   completions  {"tokens":[…],"token_logprobs":[…],"top_logprobs":[…],"text_offset":[…]}
// Thread-safety: thread-compatible.
class LogprobText {
 public:
  explicit LogprobText(bool is_chat) : is_chat_(is_chat) {}

  void Add(std::span<const serving::TokenLogprob> tokens);

  [[nodiscard]] uint64_t held_bytes() const;

  // Moves the object to the end of `out`; afterwards it has no tokens.
  void MoveTo(TextBlocks* out);

 private:
  bool is_chat_;
  std::array<TextBlocks, 4> lists_;  // without their brackets; chat has one
  std::string scratch_;
};

// The whole object for `tokens`.
void AppendLogprobs(bool is_chat, std::span<const serving::TokenLogprob> tokens, std::string* out);

}  // namespace spindle::server
