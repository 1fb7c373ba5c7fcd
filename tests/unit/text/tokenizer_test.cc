#include "text/tokenizer.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace spindle::text
