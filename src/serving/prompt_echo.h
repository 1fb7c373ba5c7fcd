// The prompt as the beginning of an answer (completions with echo): its text, and its
// log-probabilities in groups of tokens, so that a long prompt is never held as a whole.
// Thread-compatible. Borrows the text and the tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "serving/generation.h"
#include "text/tokenizer.h"

namespace spindle::serving {

class PromptEcho {
 public:
  // `tokens`: of the prompt whose decoded form is `text`; skipped control tokens are no part of it.
  PromptEcho(std::span<const TokenId> tokens,
             const std::string& text,
             bool skip_special,
             const text::Tokenizer& tokenizer);

  // The whole echo of a prompt without log-probabilities.
  [[nodiscard]] DeltaEvent Text() const;

  // The next token of the prompt. Returns a part of the echo when enough tokens have come together,
  // or the last one has; the first part has the text.
  [[nodiscard]] std::optional<DeltaEvent> Push(TokenLogprob token);

 private:
  void SetOffset(TokenLogprob* token);

  const std::string* text_;
  const text::Tokenizer* tokenizer_;
  size_t tokens_left_;
  bool skip_special_;
  bool space_dropped_;   // decoding drops the space that some tokenizers put before a text
  bool first_ = true;    // no part was returned yet
  uint64_t offset_ = 0;  // code points, with that space
  std::string pending_;  // of an unfinished character
  std::vector<TokenLogprob> group_;
};

}  // namespace spindle::serving
