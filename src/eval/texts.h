// What forced runs read: windows cut out of texts, and stories that no model has seen.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "text/tokenizer.h"

namespace spindle::eval {

struct Text {
  std::string name;
  std::string content;  // UTF-8
};

struct TextWindow {
  std::string source;  // name of the text
  uint64_t byte_begin = 0;
  std::vector<TokenId> tokens = {};
};

// `count` windows of `num_tokens` tokens, as many of each text as there are, spread evenly over it.
// They begin where a sentence does, do not overlap, and begin at least 10,000 tokens apart. ERRORS:
// kInvalidArgument: the texts are too short (says how many windows they give), or not UTF-8.
[[nodiscard]] absl::StatusOr<std::vector<TextWindow>> CutWindows(std::span<const Text> texts,
                                                                 const text::Tokenizer& tokenizer,
                                                                 uint32_t count,
                                                                 uint32_t num_tokens);

// Sentences of made-up short stories: people with random names move random things between places
// and remember them later, so that what comes refers back to what was. Deterministic.
class StoryTeller {
 public:
  explicit StoryTeller(uint64_t seed) : random_(seed) {}

  // One paragraph of about 150 words, ending in a line break.
  [[nodiscard]] std::string Paragraph();

 private:
  [[nodiscard]] uint32_t Draw(size_t count);
  [[nodiscard]] std::string Name();

  std::mt19937_64 random_;
};

// Stories of at least so many bytes.
[[nodiscard]] Text MakeStories(uint64_t seed, uint64_t num_bytes);

// Bytes of text that CutWindows takes per window.
[[nodiscard]] uint64_t BytesPerWindow(uint32_t num_tokens);

}  // namespace spindle::eval
