// Text ↔ token ids, exactly as the model's authors defined it: a thin façade over the Rust crate in
// ffi/. Thread-safety: thread-safe after construction; a DecodeStream belongs to one thread at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"

namespace spindle::text {

// Vocabulary stored in a GGUF file, by the names of its metadata keys (tokenizer.ggml.*).
struct GgufVocabulary {
  std::string model;  // "gpt2" (BPE) or "llama" (SentencePiece-style)
  std::string pre;    // pre-tokenizer name; empty = default
  std::vector<std::string> tokens;
  std::vector<float> scores;  // "llama" only
  std::vector<int32_t>
      token_types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;  // "gpt2" only
  std::optional<TokenId> bos_id;
  std::optional<TokenId> eos_id;
  std::optional<TokenId> unknown_id;
  std::optional<TokenId> padding_id;
  std::vector<TokenId> end_ids;  // further ids that end a turn (eot, eom …)
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
};

struct EncodeOptions {
  bool add_special = true;    // BOS / EOS as the model asks for
  bool parse_special = true;  // text of a control token becomes that token
};

// Turns ids into text piece by piece; never splits a UTF-8 character.
class DecodeStream {
 public:
  virtual ~DecodeStream() = default;

  // Text that `id` completes; empty while a character is unfinished.
  [[nodiscard]] virtual absl::StatusOr<std::string> Push(TokenId id) = 0;
  // What is left: an unfinished character comes out as U+FFFD.
  [[nodiscard]] virtual std::string Flush() = 0;
};

class Tokenizer {
 public:
  // From a Hugging Face folder. `tokenizer_config` (may be empty) supplies BOS/EOS names;
  // `generation_config` (may be empty) further end tokens. ERRORS: kInvalidArgument.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(std::string_view tokenizer_json,
                                                             std::string_view tokenizer_config,
                                                             std::string_view generation_config);
  // ERRORS: kUnimplemented naming the tokenizer model or pre-tokenizer; kInvalidArgument.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufVocabulary& vocabulary);
  virtual ~Tokenizer() = default;

  // ERRORS: kInvalidArgument (not UTF-8).
  [[nodiscard]] virtual absl::StatusOr<std::vector<TokenId>> Encode(
      std::string_view text, EncodeOptions options) const = 0;
  // Encodes text whose user-supplied parts are guarded (see ChatTemplate): control tokens are
  // recognised outside guarded occurrences only, and guards leave no trace.
  [[nodiscard]] virtual absl::StatusOr<std::vector<TokenId>> EncodeRendered(
      std::string_view text, char32_t guard, bool add_special) const = 0;
  // ERRORS: kInvalidArgument (id outside the vocabulary).
  [[nodiscard]] virtual absl::StatusOr<std::string> Decode(std::span<const TokenId> ids,
                                                           bool skip_special) const = 0;
  [[nodiscard]] virtual std::unique_ptr<DecodeStream> NewDecodeStream(bool skip_special) const = 0;

  // Exact bytes a token stands for inside a text (not necessarily UTF-8); control tokens: their
  // name.
  [[nodiscard]] virtual std::string_view TokenBytes(TokenId id) const = 0;
  [[nodiscard]] virtual bool IsSpecial(TokenId id) const = 0;
  [[nodiscard]] virtual uint32_t vocab_size() const = 0;
  [[nodiscard]] virtual std::optional<TokenId> bos_id() const = 0;
  [[nodiscard]] virtual bool adds_bos() const = 0;
  // All ids that end generation (EOS, end of turn …), ascending.
  [[nodiscard]] virtual std::span<const TokenId> end_ids() const = 0;
  // Text of BOS and EOS for templates; empty when the model has none.
  [[nodiscard]] virtual std::string_view bos_text() const = 0;
  [[nodiscard]] virtual std::string_view eos_text() const = 0;
  // Texts of all control tokens, for guarding user content.
  [[nodiscard]] virtual std::span<const std::string> special_texts() const = 0;
  // "bpe", "sentencepiece" …, for listings.
  [[nodiscard]] virtual std::string_view kind() const = 0;
  // SHA-256 input for fingerprints: equal definitions give equal strings.
  [[nodiscard]] virtual std::string_view definition() const = 0;
};

}  // namespace spindle::text
