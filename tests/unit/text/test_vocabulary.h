// Tiny vocabularies for text tests. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer.h"

namespace spindle::text {

inline constexpr int32_t kNormalToken = 1;
inline constexpr int32_t kUnknownToken = 2;
inline constexpr int32_t kControlToken = 3;
inline constexpr int32_t kUserDefinedToken = 4;
inline constexpr int32_t kByteToken = 6;

inline void AddToken(GgufVocabulary& vocabulary,
                     std::string_view text,
                     int32_t type,
                     float score = 0.0F) {
  vocabulary.tokens.emplace_back(text);
  vocabulary.token_types.push_back(type);
  vocabulary.scores.push_back(score);
}

// Byte-level BPE: ids 0..255 are the bytes in the order of the alphabet below, then a few merges,
// then control tokens
// <|start|>, <|end|>, <|end|>x and the user-defined token <think>.
inline GgufVocabulary BytePairVocabulary(std::string_view pre = "gpt-2") {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = pre;
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    std::string text;
    AppendUtf8(printable ? byte : next++, text);
    AddToken(vocabulary, text, kNormalToken);
  }
  const std::pair<const char*, const char*> merges[] = {{"h", "e"},
                                                        {"l", "l"},
                                                        {"he", "ll"},
                                                        {"hell", "o"},
                                                        {"\xC4\xA0", "hello"},
                                                        {"1", "2"},
                                                        {"12", "3"}};
  for (const auto& [left, right] : merges) {
    vocabulary.merges.push_back(std::string(left) + " " + right);
    AddToken(vocabulary, std::string(left) + right, kNormalToken);
  }
  AddToken(vocabulary, "<|start|>", kControlToken);
  AddToken(vocabulary, "<|end|>", kControlToken);
  AddToken(vocabulary, "<|end|>x", kControlToken);
  AddToken(vocabulary, "<think>", kUserDefinedToken);
  vocabulary.scores.clear();
  return vocabulary;
}

// SentencePiece-style: <unk> <s> </s>, 256 byte tokens, then pieces by falling score.
inline GgufVocabulary SentencePieceVocabulary() {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  AddToken(vocabulary, "<unk>", kUnknownToken);
  AddToken(vocabulary, "<s>", kControlToken);
  AddToken(vocabulary, "</s>", kControlToken);
  for (int byte = 0; byte < 256; ++byte) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    std::string text = "<0x";
    text += kDigits[static_cast<size_t>(byte) / 16];
    text += kDigits[static_cast<size_t>(byte) % 16];
    AddToken(vocabulary, text + ">", kByteToken);
  }
  float score = 0.0F;
  for (const char* piece : {"ab",
                            "\xE2\x96\x81"
                            "a",
                            "abc",
                            "\xE2\x96\x81"
                            "abc",
                            "\xE2\x96\x81",
                            "a",
                            "b",
                            "c",
                            "\xC3\xA9"}) {
    AddToken(vocabulary, piece, kNormalToken, score);
    score -= 1.0F;
  }
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 2;
  vocabulary.unknown_id = 0;
  return vocabulary;
}

}  // namespace spindle::text
