#include "serving/choice_text.h"

#include <utility>

#include "base/utf8.h"

namespace spindle::serving {

std::optional<size_t> ChoiceText::Push(TokenLogprob token, bool is_text) {
  const std::string bytes = is_text ? token.bytes : std::string();
  tokens_.push_back({std::move(token), total_});
  for (const char byte : bytes) {
    held_.push_back(byte);
    ++total_;
    if (const std::optional<size_t> stop = matcher_.Feed(byte); stop.has_value()) {
      cut_ = options_.include_stop ? total_ : total_ - stops_.strings()[*stop].size();
      return stop;
    }
  }
  return std::nullopt;
}

ReleasedText ChoiceText::Release(bool final) {
  const bool complete = final || cut_.has_value();
  uint64_t end = total_;
  if (cut_.has_value()) {
    end = *cut_;
  } else if (!final) {
    end = total_ - matcher_.held();
  }
  ReleasedText released;
  size_t used = 0;
  std::string_view ready = std::string_view(held_).substr(0, end - released_);
  while (!ready.empty()) {
    const Utf8Unit unit = NextUtf8Unit(ready);
    if (unit.kind == Utf8Unit::Kind::kTruncated && !complete) {
      break;
    }
    released.text +=
        unit.kind == Utf8Unit::Kind::kValid ? ready.substr(0, unit.length) : kReplacementCharacter;
    used += unit.length;
    ReleaseTokens(released_ + used, &released);
    ++num_characters_;
    ready.remove_prefix(unit.length);
  }
  held_.erase(0, used);
  released_ += used;
  return released;
}

// Tokens that begin before `end`, inside the character that is being released.
void ChoiceText::ReleaseTokens(uint64_t end, ReleasedText* released) {
  while (!tokens_.empty() && tokens_.front().begin < end) {
    TokenLogprob& token = tokens_.front().token;
    token.text_offset = options_.first_offset + num_characters_;
    released->tokens.push_back(std::move(token));
    tokens_.pop_front();
  }
}

}  // namespace spindle::serving
