#include "serving/prompt_echo.h"

#include <utility>

#include "base/utf8.h"

namespace spindle::serving {
namespace {

// With 20 alternatives each, a group makes about 64 KiB of JSON.
constexpr size_t kGroupTokens = 32;

}  // namespace

PromptEcho::PromptEcho(std::span<const TokenId> tokens,
                       const std::string& text,
                       bool skip_special,
                       const text::Tokenizer& tokenizer)
    : text_(&text),
      tokenizer_(&tokenizer),
      tokens_left_(tokens.size()),
      skip_special_(skip_special) {
  std::string bytes;
  for (const TokenId token : tokens) {
    if (!skip_special_ || !tokenizer.IsSpecial(token)) {
      bytes += tokenizer.TokenBytes(token);
    }
  }
  space_dropped_ = !bytes.empty() && bytes.front() == ' ' && bytes.substr(1) == text;
}

DeltaEvent PromptEcho::Text() const {
  DeltaEvent delta;
  delta.text = *text_;
  delta.is_echo = true;
  return delta;
}

void PromptEcho::SetOffset(TokenLogprob* token) {
  token->text_offset = space_dropped_ && offset_ > 0 ? offset_ - 1 : offset_;
  if (!skip_special_ || !tokenizer_->IsSpecial(token->token)) {
    pending_ += token->bytes;
  }
  while (!pending_.empty()) {
    const Utf8Unit unit = NextUtf8Unit(pending_);
    if (unit.kind == Utf8Unit::Kind::kTruncated) {
      break;
    }
    pending_.erase(0, unit.length);
    ++offset_;
  }
}

std::optional<DeltaEvent> PromptEcho::Push(TokenLogprob token) {
  SetOffset(&token);
  group_.push_back(std::move(token));
  --tokens_left_;
  if (tokens_left_ > 0 && group_.size() < kGroupTokens) {
    return std::nullopt;
  }
  DeltaEvent delta;
  delta.text = std::exchange(first_, false) ? *text_ : "";
  delta.logprobs = std::exchange(group_, {});
  delta.is_echo = true;
  return delta;
}

}  // namespace spindle::serving
