#include "text/tokenizer.h"

#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/utf8.h"
#include "text/ffi_api.h"
#include "text/gguf_tokenizer.h"
#include "unit/text/test_vocabulary.h"

namespace spindle::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> Make(const GgufVocabulary& vocabulary) {
  auto tokenizer = Tokenizer::FromGguf(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// Ids as their bytes, for readable expectations.
std::vector<std::string> Pieces(const Tokenizer& tokenizer,
                                std::string_view text,
                                EncodeOptions options = {}) {
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  std::vector<std::string> pieces;
  for (const TokenId id : *ids) {
    pieces.emplace_back(tokenizer.TokenBytes(id));
  }
  return pieces;
}

TEST(TokenizerTest, BytePairsMergeByRank) {
  const auto tokenizer = Make(BytePairVocabulary());
  EXPECT_THAT(Pieces(*tokenizer, "hello hello"), ElementsAre("hello", " hello"));
  EXPECT_THAT(Pieces(*tokenizer, "held"), ElementsAre("he", "l", "d"));
  EXPECT_EQ(tokenizer->kind(), "bpe");
}

TEST(TokenizerTest, PreTokenizerDecidesAboutDigits) {
  EXPECT_THAT(Pieces(*Make(BytePairVocabulary("gpt-2")), "123"), ElementsAre("123"));
  EXPECT_THAT(Pieces(*Make(BytePairVocabulary("smollm")), "123"), ElementsAre("1", "2", "3"));
  EXPECT_THAT(Pieces(*Make(BytePairVocabulary("qwen2")), "123"), ElementsAre("1", "2", "3"));
}

TEST(TokenizerTest, SpecialTextBecomesControlTokenOnlyWhenAsked) {
  const auto tokenizer = Make(BytePairVocabulary());
  EXPECT_THAT(Pieces(*tokenizer, "a<|end|>b"), ElementsAre("a", "<|end|>", "b"));
  EXPECT_THAT(Pieces(*tokenizer, "<|end|>", {.parse_special = false}),
              ElementsAre("<", "|", "e", "n", "d", "|", ">"));
  EXPECT_THAT(Pieces(*tokenizer, "<think>", {.parse_special = false}), ElementsAre("<think>"));
}

TEST(TokenizerTest, SentencePiecesJoinByScoreAndFallBackToBytes) {
  const auto tokenizer = Make(SentencePieceVocabulary());
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_THAT(Pieces(*tokenizer, "abc"), ElementsAre("<s>", " abc"));
  EXPECT_THAT(Pieces(*tokenizer, "\xE2\x82\xAC", {.add_special = false}),
              ElementsAre(" ", "\xE2", "\x82", "\xAC"));
  const auto ids = tokenizer->Encode("abc \xE2\x82\xAC", {});
  EXPECT_EQ(*tokenizer->Decode(*ids, true), "abc \xE2\x82\xAC");
  EXPECT_EQ(*tokenizer->Decode(*ids, false), "<s> abc \xE2\x82\xAC");
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_THAT(tokenizer->end_ids(), ElementsAre(2));
}

TEST(TokenizerTest, UnknownModelAndPreTokenizerAreNamed) {
  GgufVocabulary vocabulary = BytePairVocabulary("mystery");
  auto tokenizer = Tokenizer::FromGguf(vocabulary);
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("mystery"));
  vocabulary.model = "rwkv";
  tokenizer = Tokenizer::FromGguf(vocabulary);
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("rwkv"));
}

TEST(TokenizerTest, DamagedVocabulariesAreRefusedByField) {
  const auto message = [](const GgufVocabulary& vocabulary) {
    const auto tokenizer = Tokenizer::FromGguf(vocabulary);
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(tokenizer.status().message());
  };
  GgufVocabulary vocabulary = BytePairVocabulary();
  vocabulary.tokens[5] = "\xFF";
  EXPECT_THAT(message(vocabulary), HasSubstr("tokens[5]"));
  vocabulary = BytePairVocabulary();
  vocabulary.tokens[7] = vocabulary.tokens[8];
  EXPECT_THAT(message(vocabulary), HasSubstr("tokens[8]"));
  vocabulary = BytePairVocabulary();
  vocabulary.merges[2] = "single";
  EXPECT_THAT(message(vocabulary), HasSubstr("merges[2]"));
  vocabulary = BytePairVocabulary();
  vocabulary.token_types.pop_back();
  EXPECT_THAT(message(vocabulary), HasSubstr("token_type"));
  vocabulary = BytePairVocabulary();
  vocabulary.eos_id = 100'000;
  EXPECT_THAT(message(vocabulary), HasSubstr("100000"));
  vocabulary = SentencePieceVocabulary();
  vocabulary.scores.pop_back();
  EXPECT_THAT(message(vocabulary), HasSubstr("scores"));
}

TEST(TokenizerTest, InputThatIsNotUtf8IsRefused) {
  const auto tokenizer = Make(BytePairVocabulary());
  EXPECT_EQ(tokenizer->Encode("a\xC3", {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{-1}, true).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Tokenizer::FromJson("{}", "", "").ok());
}

TEST(DecodeStreamTest, PiecesConcatenateToTheFullDecode) {
  constexpr uint64_t kSeed = 11;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937_64 random(kSeed);
  for (const GgufVocabulary& vocabulary : {BytePairVocabulary(), SentencePieceVocabulary()}) {
    const auto tokenizer = Make(vocabulary);
    for (int round = 0; round < 2000; ++round) {
      const bool skip_special = round % 2 == 0;
      std::vector<TokenId> ids(random() % 20);
      for (TokenId& id : ids) {
        id = static_cast<TokenId>(random() % tokenizer->vocab_size());
      }
      const auto stream = tokenizer->NewDecodeStream(skip_special);
      std::string streamed;
      for (const TokenId id : ids) {
        const auto piece = stream->Push(id);
        ASSERT_TRUE(piece.ok());
        ASSERT_TRUE(IsUtf8(*piece));
        streamed += *piece;
      }
      streamed += stream->Flush();
      EXPECT_EQ(streamed, *tokenizer->Decode(ids, skip_special));
    }
  }
}

TEST(DecodeStreamTest, CharactersAreNeverSplit) {
  const auto tokenizer = Make(BytePairVocabulary());
  const auto ids = tokenizer->Encode("\xF0\x9F\x98\x80!", {});
  ASSERT_EQ(ids->size(), 5U);
  const auto stream = tokenizer->NewDecodeStream(true);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(*stream->Push((*ids)[i]), "");
  }
  EXPECT_EQ(*stream->Push((*ids)[3]), "\xF0\x9F\x98\x80");
  EXPECT_EQ(*stream->Push((*ids)[0]), "");
  EXPECT_EQ(*stream->Push((*ids)[4]), "\xEF\xBF\xBD!");
  EXPECT_EQ(*stream->Push((*ids)[0]), "");
  EXPECT_EQ(stream->Flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream->Flush(), "");
}

TEST(GrammarTest, SchemaMaskAllowsOnlyWhatMayBegin) {
  GgufVocabulary vocabulary = BytePairVocabulary();
  const auto definition = BuildGgufDefinition(vocabulary);
  ASSERT_TRUE(definition.ok());
  std::string message;
  int32_t code = 0;
  const std::string& json = definition->tokenizer_json;
  const TokenizerHandle handle(
      spindle_text_tokenizer_new(FfiBytes(json), json.size(), FfiOutput(message), &code));
  ASSERT_EQ(code, 0) << message;
  const std::string_view schema = R"({"type":"object","properties":{"a":{"type":"integer"}}})";
  std::string mask;
  const auto end = static_cast<uint32_t>(vocabulary.tokens.size() - 3);
  ASSERT_EQ(spindle_text_schema_first_mask(
                handle.get(), end, FfiBytes(schema), schema.size(), FfiOutput(mask)),
            0)
      << mask;
  const auto allowed = [&](size_t token) {
    return (static_cast<uint8_t>(mask[token / 8]) >> token % 8 & 1) != 0;
  };
  EXPECT_TRUE(allowed('{'));
  EXPECT_FALSE(allowed('}'));
  EXPECT_FALSE(allowed('a'));
  EXPECT_FALSE(allowed(end));
  std::string refusal;
  const std::string_view bad = R"({"type":"nonsense"})";
  EXPECT_NE(spindle_text_schema_first_mask(
                handle.get(), end, FfiBytes(bad), bad.size(), FfiOutput(refusal)),
            0);
}

}  // namespace
}  // namespace spindle::text
