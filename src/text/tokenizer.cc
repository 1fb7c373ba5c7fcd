#include "text/tokenizer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/ffi_api.h"
#include "text/gguf_tokenizer.h"
#include "text/json_input.h"

namespace spindle::text {
namespace {

// What a definition says about the ends of a text, whatever its source.
struct Boundaries {
  std::optional<TokenId> bos_id;
  std::optional<TokenId> eos_id;
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  std::vector<TokenId> end_ids;
};

class RustTokenizer final : public Tokenizer {
 public:
  explicit RustTokenizer(TokenizerHandle handle) : handle_(std::move(handle)) {}

  // Reads the vocabulary table; ids from `max_tokens` on are not part of it and left out of
  // encodings.
  absl::Status Load(size_t max_tokens);
  // What the definition itself puts around a text, and its kind. ERRORS: kInvalidArgument.
  absl::StatusOr<Boundaries> Describe();
  void Finish(Boundaries boundaries, std::string definition);

  // The id of the token whose bytes are `text`; added tokens win. Cost: O(vocabulary).
  [[nodiscard]] std::optional<TokenId> Find(std::string_view text) const;

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              EncodeOptions options) const override {
    return Encode(text, options.parse_special, /*guard=*/0, options.add_special);
  }

  absl::StatusOr<std::vector<TokenId>> EncodeRendered(std::string_view text,
                                                      char32_t guard,
                                                      bool add_special) const override {
    return Encode(text, /*parse_special=*/true, guard, add_special);
  }

  absl::StatusOr<std::string> Decode(std::span<const TokenId> ids,
                                     bool skip_special) const override;
  std::unique_ptr<DecodeStream> NewDecodeStream(bool skip_special) const override;

  std::string_view TokenBytes(TokenId id) const override {
    return Contains(id) ? bytes_[static_cast<size_t>(id)] : std::string_view();
  }

  bool IsSpecial(TokenId id) const override {
    return Contains(id) && special_[static_cast<size_t>(id)];
  }

  uint32_t vocab_size() const override { return static_cast<uint32_t>(bytes_.size()); }

  std::optional<TokenId> bos_id() const override { return boundaries_.bos_id; }

  bool adds_bos() const override {
    return boundaries_.bos_id.has_value() &&
           std::ranges::count(boundaries_.prefix, *boundaries_.bos_id) > 0;
  }

  std::span<const TokenId> end_ids() const override { return boundaries_.end_ids; }

  std::string_view bos_text() const override { return TextOf(boundaries_.bos_id); }

  std::string_view eos_text() const override { return TextOf(boundaries_.eos_id); }

  std::span<const std::string> special_texts() const override { return special_texts_; }

  std::string_view kind() const override { return kind_; }

  std::string_view definition() const override { return definition_; }

  [[nodiscard]] bool Contains(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < bytes_.size();
  }

  [[nodiscard]] bool strips_leading_space() const { return strips_leading_space_; }

 private:
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              bool parse_special,
                                              char32_t guard,
                                              bool add_special) const;

  [[nodiscard]] std::string_view TextOf(std::optional<TokenId> id) const {
    return id.has_value() ? TokenBytes(*id) : std::string_view();
  }

  TokenizerHandle handle_;
  std::string table_;                    // as the Rust side wrote it; `bytes_` points into it
  std::vector<std::string_view> bytes_;  // [vocab_size]
  std::vector<bool> special_;            // [vocab_size]
  std::vector<std::string> special_texts_;
  Boundaries boundaries_;
  bool strips_leading_space_ = false;
  std::string kind_;
  std::string definition_;
};

class RustDecodeStream final : public DecodeStream {
 public:
  RustDecodeStream(const RustTokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer),
        skip_special_(skip_special),
        at_start_(tokenizer.strips_leading_space()) {}

  absl::StatusOr<std::string> Push(TokenId id) override {
    if (!tokenizer_.Contains(id)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token id ", id, " is outside the vocabulary [0, ", tokenizer_.vocab_size(), ")"));
    }
    std::string text;
    if (skip_special_ && tokenizer_.IsSpecial(id)) {
      return text;
    }
    pending_ += tokenizer_.TokenBytes(id);
    pending_.erase(0, AppendLossyUtf8(pending_, text));
    if (at_start_ && !text.empty()) {
      at_start_ = false;
      text.erase(0, text[0] == ' ' ? 1 : 0);
    }
    return text;
  }

  std::string Flush() override {
    const bool unfinished = !pending_.empty();
    pending_.clear();
    return std::string(unfinished ? kReplacementCharacter : "");
  }

 private:
  const RustTokenizer& tokenizer_;
  const bool skip_special_;
  bool at_start_;        // a leading space is not part of the text
  std::string pending_;  // begins an unfinished character; at most 3 bytes between calls
};

absl::Status RustTokenizer::Load(size_t max_tokens) {
  std::string table;
  const int32_t code = spindle_text_tokenizer_tokens(handle_.get(), FfiOutput(table));
  SPINDLE_RETURN_IF_ERROR(FfiStatus(code, table));
  table_ = std::move(table);
  for (size_t at = 0; at < table_.size() && bytes_.size() < max_tokens;) {
    uint32_t size = 0;
    std::memcpy(&size, table_.data() + at + 1, sizeof(size));
    special_.push_back(table_[at] != 0);
    at += 1 + sizeof(size);
    bytes_.push_back(std::string_view(table_).substr(at, size));
    at += size;
    if (special_.back() && size > 0) {
      special_texts_.emplace_back(bytes_.back());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Boundaries> RustTokenizer::Describe() {
  std::string text;
  const int32_t code = spindle_text_tokenizer_describe(handle_.get(), FfiOutput(text));
  SPINDLE_RETURN_IF_ERROR(FfiStatus(code, text));
  SPINDLE_ASSIGN_OR_RETURN(const Json about, ParseJson(text, "tokenizer description"));
  strips_leading_space_ = about["strips_leading_space"].get<bool>();
  kind_ = about["kind"].get<std::string>();
  Boundaries boundaries;
  boundaries.prefix = about["before"].get<std::vector<TokenId>>();
  boundaries.suffix = about["after"].get<std::vector<TokenId>>();
  return boundaries;
}

void RustTokenizer::Finish(Boundaries boundaries, std::string definition) {
  boundaries_ = std::move(boundaries);
  definition_ = std::move(definition);
}

std::optional<TokenId> RustTokenizer::Find(std::string_view text) const {
  std::optional<TokenId> found;
  for (size_t id = 0; id < bytes_.size(); ++id) {
    if (bytes_[id] == text && (special_[id] || !found.has_value())) {
      found = static_cast<TokenId>(id);
    }
  }
  return found;
}

absl::StatusOr<std::vector<TokenId>> RustTokenizer::Encode(std::string_view text,
                                                           bool parse_special,
                                                           char32_t guard,
                                                           bool add_special) const {
  std::string output;
  const int32_t code = spindle_text_tokenizer_encode(
      handle_.get(), FfiBytes(text), text.size(), parse_special, guard, FfiOutput(output));
  SPINDLE_RETURN_IF_ERROR(FfiStatus(code, output));
  std::vector<TokenId> ids(output.size() / sizeof(TokenId));
  if (!ids.empty()) {
    std::memcpy(ids.data(), output.data(), output.size());
  }
  std::erase_if(ids, [&](TokenId id) { return !Contains(id); });
  if (add_special) {
    ids.insert(ids.begin(), boundaries_.prefix.begin(), boundaries_.prefix.end());
    ids.insert(ids.end(), boundaries_.suffix.begin(), boundaries_.suffix.end());
  }
  return ids;
}

absl::StatusOr<std::string> RustTokenizer::Decode(std::span<const TokenId> ids,
                                                  bool skip_special) const {
  RustDecodeStream stream(*this, skip_special);
  std::string text;
  for (const TokenId id : ids) {
    SPINDLE_ASSIGN_OR_RETURN(const std::string piece, stream.Push(id));
    text += piece;
  }
  text += stream.Flush();
  return text;
}

std::unique_ptr<DecodeStream> RustTokenizer::NewDecodeStream(bool skip_special) const {
  return std::make_unique<RustDecodeStream>(*this, skip_special);
}

absl::StatusOr<std::unique_ptr<RustTokenizer>> Make(std::string_view tokenizer_json,
                                                    size_t max_tokens) {
  std::string message;
  int32_t code = 0;
  TokenizerHandle handle(spindle_text_tokenizer_new(
      FfiBytes(tokenizer_json), tokenizer_json.size(), FfiOutput(message), &code));
  SPINDLE_RETURN_IF_ERROR(FfiStatus(code, message));
  auto tokenizer = std::make_unique<RustTokenizer>(std::move(handle));
  SPINDLE_RETURN_IF_ERROR(tokenizer->Load(max_tokens));
  return tokenizer;
}

absl::StatusOr<Json> ParseConfig(std::string_view text, std::string_view name) {
  if (text.empty()) {
    return Json::object();
  }
  SPINDLE_ASSIGN_OR_RETURN(Json config, ParseJson(text, name));
  if (!config.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(absl::string_view(name.data(), name.size()), " is not an object"));
  }
  return config;
}

// The token that `key` of tokenizer_config.json names, as text or as an object with "content"; none
// when absent.
absl::StatusOr<std::optional<TokenId>> NamedToken(const RustTokenizer& tokenizer,
                                                  const Json& config,
                                                  const char* key) {
  const auto entry = config.find(key);
  if (entry == config.end() || entry->is_null()) {
    return std::optional<TokenId>();
  }
  const Json& text =
      entry->is_object() && entry->contains("content") ? (*entry)["content"] : *entry;
  const std::optional<TokenId> id =
      text.is_string() ? tokenizer.Find(text.get_ref<const std::string&>()) : std::nullopt;
  if (!id.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer_config.json: ", key, " is not a token"));
  }
  return id;
}

// Appends generation_config.json's eos_token_id: one id or a list.
absl::Status AddEndIds(const RustTokenizer& tokenizer,
                       const Json& config,
                       std::vector<TokenId>& ids) {
  const auto entry = config.find("eos_token_id");
  if (entry == config.end() || entry->is_null()) {
    return absl::OkStatus();
  }
  const Json list = entry->is_array() ? *entry : Json::array({*entry});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() >= int64_t{tokenizer.vocab_size()}) {
      return absl::InvalidArgumentError(absl::StrCat(
          "generation_config.json: eos_token_id ", id.dump(), " is outside the vocabulary"));
    }
    ids.push_back(id.get<TokenId>());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view tokenizer_json,
                                                               std::string_view tokenizer_config,
                                                               std::string_view generation_config) {
  SPINDLE_ASSIGN_OR_RETURN(const Json config,
                           ParseConfig(tokenizer_config, "tokenizer_config.json"));
  SPINDLE_ASSIGN_OR_RETURN(const Json generation,
                           ParseConfig(generation_config, "generation_config.json"));
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<RustTokenizer> tokenizer,
                           Make(tokenizer_json, std::numeric_limits<size_t>::max()));
  SPINDLE_ASSIGN_OR_RETURN(Boundaries boundaries, tokenizer->Describe());
  SPINDLE_ASSIGN_OR_RETURN(boundaries.bos_id, NamedToken(*tokenizer, config, "bos_token"));
  SPINDLE_ASSIGN_OR_RETURN(boundaries.eos_id, NamedToken(*tokenizer, config, "eos_token"));
  auto& ends = boundaries.end_ids;
  if (boundaries.eos_id.has_value()) {
    ends.push_back(*boundaries.eos_id);
  }
  SPINDLE_RETURN_IF_ERROR(AddEndIds(*tokenizer, generation, ends));
  std::ranges::sort(ends);
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  Sha256 hash;
  hash.Field("tokenizer.json")
      .Field(tokenizer_json)
      .Field(tokenizer_config)
      .Field(generation_config);
  tokenizer->Finish(std::move(boundaries), ToHex(hash.Finish()));
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufVocabulary& vocabulary) {
  SPINDLE_ASSIGN_OR_RETURN(GgufDefinition definition, BuildGgufDefinition(vocabulary));
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<RustTokenizer> tokenizer,
                           Make(definition.tokenizer_json, vocabulary.tokens.size()));
  SPINDLE_ASSIGN_OR_RETURN(Boundaries boundaries, tokenizer->Describe());
  Sha256 hash;
  hash.Field("gguf").Field(definition.tokenizer_json);
  for (const auto* ids : {&definition.prefix, &definition.suffix, &definition.end_ids}) {
    hash.Number(ids->size());
    for (const TokenId id : *ids) {
      hash.Number(static_cast<uint64_t>(id));
    }
  }
  boundaries.prefix = std::move(definition.prefix);
  boundaries.suffix = std::move(definition.suffix);
  boundaries.end_ids = std::move(definition.end_ids);
  boundaries.bos_id = vocabulary.bos_id;
  boundaries.eos_id = vocabulary.eos_id;
  if (!boundaries.bos_id.has_value() && !boundaries.prefix.empty()) {
    boundaries.bos_id = boundaries.prefix.front();
  }
  for (const auto& [id, key] :
       {std::pair(boundaries.bos_id, "bos"), std::pair(boundaries.eos_id, "eos")}) {
    if (id.has_value() && !tokenizer->Contains(*id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.", key, "_token_id ", *id, " is outside the vocabulary"));
    }
  }
  tokenizer->Finish(std::move(boundaries), ToHex(hash.Finish()));
  return tokenizer;
}

}  // namespace spindle::text
