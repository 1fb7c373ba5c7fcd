#include "text/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/json_input.h"

namespace spindle::text {
namespace {

// Values of tokenizer.ggml.token_type.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Splits a text into words: GPT-2's rule.
constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";
// Llama 3's and Qwen 2's rules differ in how many digits make a word.
constexpr std::string_view kLlama3Words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Words =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreTokenizer {
  std::string_view name;
  std::array<std::string_view, 4> splits;  // applied in order, each on the pieces of the one before
  bool whole_words_first;                  // a word that is a token needs no merges
  bool adds_bos;
};

constexpr std::array kPreTokenizers = {
    PreTokenizer{
        "", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Words, R"(\p{N}+)", "[0-9][0-9][0-9]"}, false, false},
    PreTokenizer{"default",
                 {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Words, R"(\p{N}+)", "[0-9][0-9][0-9]"},
                 false,
                 false},
    PreTokenizer{"gpt-2", {kGpt2Words}, false, false},
    PreTokenizer{"smollm", {R"(\p{N})", kGpt2Words}, false, false},
    PreTokenizer{"llama-bpe", {kLlama3Words}, true, true},
    PreTokenizer{"llama3", {kLlama3Words}, true, true},
    PreTokenizer{"llama-v3", {kLlama3Words}, true, true},
    PreTokenizer{"qwen2", {kQwen2Words}, false, false},
    PreTokenizer{"deepseek-r1-qwen", {kQwen2Words}, false, false},
};

// Control tokens that end a turn or a text in the model families in use. Files often name only one
// of theirs in their metadata, and a chat would run on past the others.
constexpr std::array<std::string_view, 14> kEndTexts = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "</s>",
    "<end_of_utterance>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
};

// Stands for a byte that has no token, one past the vocabulary: it keeps its neighbours from
// merging and is then dropped. The space keeps any word from having this text.
constexpr std::string_view kMissingByte = " no token";

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space

class Builder {
 public:
  explicit Builder(const GgufVocabulary& vocabulary) : vocabulary_(vocabulary) {}

  absl::StatusOr<GgufDefinition> Build() {
    SPINDLE_RETURN_IF_ERROR(IndexTokens());
    Json definition = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
    definition["added_tokens"] = AddedTokens();
    definition["post_processor"] = nullptr;
    if (vocabulary_.model == "gpt2") {
      SPINDLE_RETURN_IF_ERROR(DescribeBytePairs(definition));
    } else if (vocabulary_.model == "llama") {
      SPINDLE_RETURN_IF_ERROR(DescribeSentencePieces(definition));
    } else {
      return absl::UnimplementedError(absl::StrCat(
          "tokenizer.ggml.model '", vocabulary_.model, "' is not supported (known: gpt2, llama)"));
    }
    GgufDefinition result;
    result.tokenizer_json = WithVocabulary(definition.dump());
    SPINDLE_RETURN_IF_ERROR(AddAffixes(result));
    SPINDLE_RETURN_IF_ERROR(AddEnds(result));
    return result;
  }

 private:
  [[nodiscard]] TokenType Type(size_t id) const {
    return vocabulary_.token_types.empty() ? TokenType::kNormal
                                           : static_cast<TokenType>(vocabulary_.token_types[id]);
  }

  absl::Status IndexTokens() {
    const auto& tokens = vocabulary_.tokens;
    if (tokens.empty()) {
      return absl::InvalidArgumentError("tokenizer.ggml.tokens is empty");
    }
    if (!vocabulary_.token_types.empty() && vocabulary_.token_types.size() != tokens.size()) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.token_type has ",
                                                     vocabulary_.token_types.size(),
                                                     " entries for ",
                                                     tokens.size(),
                                                     " tokens"));
    }
    ids_.reserve(tokens.size());
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (!IsUtf8(tokens[id])) {
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer.ggml.tokens[", id, "] is not valid UTF-8"));
      }
      if (!ids_.emplace(tokens[id], id).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer.ggml.tokens[", id, "] occurs twice"));
      }
    }
    return absl::OkStatus();
  }

  // Control tokens, and those that the file's author asks to find in every text.
  [[nodiscard]] Json AddedTokens() const {
    Json added = Json::array();
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      const std::string& text = vocabulary_.tokens[id];
      const TokenType type = Type(id);
      // Some files mark an end-of-turn token as ordinary text; it is a control token all the same.
      const bool ends = std::ranges::find(kEndTexts, text) != kEndTexts.end();
      const bool special = type == TokenType::kControl || type == TokenType::kUnknown || ends;
      if (!text.empty() && (special || type == TokenType::kUserDefined)) {
        added.push_back({{"id", id},
                         {"content", text},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", special}});
      }
    }
    return added;
  }

  absl::Status DescribeBytePairs(Json& definition) {
    const auto* const pre = std::ranges::find(kPreTokenizers, vocabulary_.pre, &PreTokenizer::name);
    if (pre == kPreTokenizers.end()) {
      return absl::UnimplementedError(
          absl::StrCat("tokenizer.ggml.pre '", vocabulary_.pre, "' is not supported"));
    }
    adds_bos_ = pre->adds_bos;
    Json splits = Json::array();
    for (const std::string_view pattern : pre->splits) {
      if (!pattern.empty()) {
        splits.push_back({{"type", "Split"},
                          {"pattern", {{"Regex", pattern}}},
                          {"behavior", "Isolated"},
                          {"invert", false}});
      }
    }
    const Json bytes = {{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", false},
                        {"use_regex", false}};
    splits.push_back(bytes);
    definition["normalizer"] = nullptr;
    definition["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::move(splits)}};
    definition["decoder"] = bytes;
    definition["model"] = {{"type", "BPE"},
                           {"unk_token", kMissingByte},
                           {"fuse_unk", false},
                           {"byte_fallback", false},
                           {"ignore_merges", pre->whole_words_first}};
    for (size_t i = 0; i < vocabulary_.merges.size(); ++i) {
      const std::string_view merge = vocabulary_.merges[i];
      // The byte-level alphabet has no space, so that the first one after a character separates the
      // halves.
      const size_t space = merge.find(' ', 1);
      if (space == std::string_view::npos || !IsUtf8(merge)) {
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer.ggml.merges[", i, "] is not two tokens"));
      }
      merges_.emplace_back(merge.substr(0, space), merge.substr(space + 1));
    }
    return absl::OkStatus();
  }

  absl::Status DescribeSentencePieces(Json& definition) {
    if (vocabulary_.scores.size() != vocabulary_.tokens.size()) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.scores has ",
                                                     vocabulary_.scores.size(),
                                                     " entries for ",
                                                     vocabulary_.tokens.size(),
                                                     " tokens"));
    }
    adds_bos_ = true;
    const bool prefix = vocabulary_.add_space_prefix.value_or(true);
    Json normalizers = Json::array();
    if (prefix) {
      normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
    }
    normalizers.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}});
    Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                     {{"type", "ByteFallback"}},
                     {{"type", "Fuse"}}};
    if (prefix) {
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    definition["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
    definition["pre_tokenizer"] = nullptr;
    definition["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
    Json unknown = nullptr;
    const TokenId unknown_id = vocabulary_.unknown_id.value_or(0);
    if (InVocabulary(unknown_id)) {
      unknown = vocabulary_.tokens[static_cast<size_t>(unknown_id)];
    }
    definition["model"] = {{"type", "BPE"},
                           {"unk_token", std::move(unknown)},
                           {"fuse_unk", true},
                           {"byte_fallback", true},
                           {"ignore_merges", false}};
    return DeriveMerges();
  }

  // SentencePiece joins any two neighbours whose union is a token, best score first. The equivalent
  // merge list names every way to cut a token into two tokens, by falling score of the whole.
  absl::Status DeriveMerges() {
    struct Candidate {
      float score;
      size_t id;
      std::string_view left;
      std::string_view right;
    };

    std::vector<Candidate> candidates;
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      if (std::isnan(vocabulary_.scores[id])) {
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer.ggml.scores[", id, "] is not a number"));
      }
      const std::string_view text = vocabulary_.tokens[id];
      if (!Mergeable(id) || text.empty()) {
        continue;
      }
      for (size_t cut = NextUtf8Unit(text).length; cut < text.size();
           cut += NextUtf8Unit(text.substr(cut)).length) {
        const auto left = ids_.find(text.substr(0, cut));
        const auto right = ids_.find(text.substr(cut));
        if (left != ids_.end() && right != ids_.end() && Mergeable(left->second) &&
            Mergeable(right->second)) {
          candidates.push_back({vocabulary_.scores[id], id, left->first, right->first});
        }
      }
    }
    std::ranges::stable_sort(
        candidates, [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
    for (const Candidate& candidate : candidates) {
      merges_.emplace_back(candidate.left, candidate.right);
    }
    return absl::OkStatus();
  }

  // Control and byte tokens never arise from joining text.
  [[nodiscard]] bool Mergeable(size_t id) const {
    const TokenType type = Type(id);
    return type == TokenType::kNormal || type == TokenType::kUserDefined ||
           type == TokenType::kUnused;
  }

  [[nodiscard]] bool InVocabulary(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < vocabulary_.tokens.size();
  }

  // Writes vocabulary and merges straight into the text: as JSON values they would take hundreds of
  // megabytes.
  [[nodiscard]] std::string WithVocabulary(std::string definition) const {
    definition.resize(definition.size() - 2);  // the model object is last and stays open
    absl::StrAppend(&definition, ",\"vocab\":{");
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      absl::StrAppend(
          &definition, id == 0 ? "" : ",", Json(vocabulary_.tokens[id]).dump(), ":", id);
    }
    if (vocabulary_.model == "gpt2") {
      absl::StrAppend(&definition, ",", Json(kMissingByte).dump(), ":", vocabulary_.tokens.size());
    }
    absl::StrAppend(&definition, "},\"merges\":[");
    for (size_t i = 0; i < merges_.size(); ++i) {
      absl::StrAppend(&definition,
                      i == 0 ? "[" : ",[",
                      Json(merges_[i].first).dump(),
                      ",",
                      Json(merges_[i].second).dump(),
                      "]");
    }
    absl::StrAppend(&definition, "]}}");
    return definition;
  }

  absl::Status AddAffixes(GgufDefinition& result) const {
    const auto add = [&](bool wanted,
                         std::optional<TokenId> id,
                         TokenId fallback,
                         absl::string_view name,
                         std::vector<TokenId>& ids) -> absl::Status {
      if (!wanted) {
        return absl::OkStatus();
      }
      if (!id.has_value() && vocabulary_.model == "llama") {
        id = fallback;
      }
      if (!id.has_value() || !InVocabulary(*id)) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " is missing or outside the vocabulary"));
      }
      ids.push_back(*id);
      return absl::OkStatus();
    };
    // SentencePiece models without these keys use ids 1 and 2.
    SPINDLE_RETURN_IF_ERROR(add(vocabulary_.add_bos.value_or(adds_bos_),
                                vocabulary_.bos_id,
                                1,
                                "tokenizer.ggml.bos_token_id",
                                result.prefix));
    return add(vocabulary_.add_eos.value_or(false),
               vocabulary_.eos_id,
               2,
               "tokenizer.ggml.eos_token_id",
               result.suffix);
  }

  absl::Status AddEnds(GgufDefinition& result) const {
    std::vector<TokenId> ends = vocabulary_.end_ids;
    if (vocabulary_.eos_id.has_value()) {
      ends.push_back(*vocabulary_.eos_id);
    }
    for (const std::string_view text : kEndTexts) {
      const auto found = ids_.find(text);
      if (found != ids_.end()) {
        ends.push_back(static_cast<TokenId>(found->second));
      }
    }
    std::ranges::sort(ends);
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    for (const TokenId id : ends) {
      if (!InVocabulary(id)) {
        return absl::InvalidArgumentError(
            absl::StrCat("end token ", id, " is outside the vocabulary"));
      }
    }
    result.end_ids = std::move(ends);
    return absl::OkStatus();
  }

  const GgufVocabulary& vocabulary_;
  std::unordered_map<std::string_view, size_t> ids_;
  std::vector<std::pair<std::string_view, std::string_view>> merges_;
  bool adds_bos_ = false;  // when the file does not say
};

}  // namespace

absl::StatusOr<GgufDefinition> BuildGgufDefinition(const GgufVocabulary& vocabulary) {
  return Builder(vocabulary).Build();
}

}  // namespace spindle::text
