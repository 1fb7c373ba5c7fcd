// Turns the sampled tokens of one choice into text that may be shown: bytes of unfinished
// characters and possible beginnings of stop strings are held back, the text ends where a stop
// string matched, and every token is released with its first byte. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/generation.h"
#include "serving/stop_matcher.h"

namespace spindle::serving {

// Text that is decided now and the tokens that begin in it, in order.
struct ReleasedText {
  std::string text;
  std::vector<TokenLogprob> tokens;
};

class ChoiceText {
 public:
  struct Options {
    bool include_stop = false;
    uint64_t first_offset = 0;  // code points before the generated text (echo)
  };

  // `stops` must outlive the object.
  ChoiceText(const StopSet& stops, const Options& options)
      : options_(options), stops_(stops), matcher_(stops) {}

  // One sampled token whose bytes are token.bytes when it is part of the text and none otherwise
  // (`is_text` false: a skipped control token). Returns the index of the stop string that it
  // completes; the choice is over then. text_offset is set on release.
  std::optional<size_t> Push(TokenLogprob token, bool is_text);

  // What may be shown now; everything up to the stop when `final` or after a stop string.
  [[nodiscard]] ReleasedText Release(bool final);

 private:
  struct HeldToken {
    TokenLogprob token;
    uint64_t begin;  // offset of its first byte in the stream
  };

  void ReleaseTokens(uint64_t end, ReleasedText* released);

  Options options_;
  const StopSet& stops_;
  StopMatcher matcher_;
  std::string held_;             // bytes [released_, total_) of the stream
  uint64_t released_ = 0;        // bytes
  uint64_t total_ = 0;           // bytes
  uint64_t num_characters_ = 0;  // code points released
  std::optional<uint64_t> cut_;  // end of the text, set by a stop string
  std::deque<HeldToken> tokens_;
};

}  // namespace spindle::serving
