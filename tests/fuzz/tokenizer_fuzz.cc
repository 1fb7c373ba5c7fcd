// Fuzzes tokenizer definitions and texts. Input: "J", a tokenizer.json, a zero byte and a text; "G"
// and GGUF vocabulary lines (a kind letter, then the token or merge) up to a zero byte and a text;
// anything else is a text for a fixed vocabulary. Encodings must decode to the text where the
// vocabulary is complete, and streams must equal the whole.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer.h"
#include "unit/text/test_vocabulary.h"

namespace {

using spindle::TokenId;
using spindle::text::GgufVocabulary;
using spindle::text::Tokenizer;

void Require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

void Exercise(const Tokenizer& tokenizer, std::string_view text, bool complete) {
  for (const bool parse_special : {true, false}) {
    const auto ids = tokenizer.Encode(text, {.add_special = false, .parse_special = parse_special});
    if (!ids.ok()) {
      Require(!complete || !spindle::IsUtf8(text));
      continue;
    }
    std::string streamed;
    const auto stream = tokenizer.NewDecodeStream(false);
    for (const TokenId id : *ids) {
      Require(parse_special || !complete || !tokenizer.IsSpecial(id));
      const auto piece = stream->Push(id);
      Require(piece.ok() && spindle::IsUtf8(*piece));
      streamed += *piece;
    }
    streamed += stream->Flush();
    Require(streamed == *tokenizer.Decode(*ids, false));
    Require(!complete || streamed == text);
  }
}

GgufVocabulary ParseVocabulary(std::string_view lines) {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.add_bos = false;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string line(lines.substr(at, end - at));
    at = end + 1;
    if (line.empty()) {
      continue;
    }
    const std::string rest = line.substr(1);
    if (line[0] == 'm') {
      vocabulary.merges.push_back(rest);
    } else if (line[0] == 'p') {
      vocabulary.pre = rest;
    } else if (line[0] == 'L') {
      vocabulary.model = "llama";
    } else {
      const auto score = -static_cast<float>(vocabulary.tokens.size());
      spindle::text::AddToken(vocabulary, rest, line[0] - '0', score);
    }
  }
  return vocabulary;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // An exactly sized copy lets ASan see any overread.
  const std::vector<char> copy(data, data + size);
  const std::string_view input(copy.data(), copy.size());
  const size_t zero = input.find('\0');
  const std::string_view head = input.substr(0, zero);
  const std::string_view text =
      zero == std::string_view::npos ? std::string_view() : input.substr(zero + 1);
  if (head.starts_with('J')) {
    const auto tokenizer = Tokenizer::FromJson(head.substr(1), "", "");
    if (tokenizer.ok()) {
      Exercise(**tokenizer, text, false);
    }
  } else if (head.starts_with('G')) {
    const auto tokenizer = Tokenizer::FromGguf(ParseVocabulary(head.substr(1)));
    if (tokenizer.ok()) {
      Exercise(**tokenizer, text, false);
    }
  } else {
    static const auto* const tokenizer = [] {
      GgufVocabulary vocabulary = spindle::text::BytePairVocabulary("llama-bpe");
      vocabulary.add_bos = false;  // it has no BOS token
      return new auto(*Tokenizer::FromGguf(vocabulary));
    }();
    Exercise(**tokenizer, input, true);
  }
  return 0;
}
