#include "eval/texts.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spindle::eval {
namespace {

using testing::HasSubstr;

// A token per two bytes: as many as a piece of English text would rather not have.
class PairTokenizer final : public text::Tokenizer {
 public:
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              text::EncodeOptions /*options*/) const override {
    std::vector<TokenId> tokens;
    for (size_t i = 0; i < text.size(); i += 2) {
      tokens.push_back(static_cast<unsigned char>(text[i]));
    }
    return tokens;
  }

  absl::StatusOr<std::vector<TokenId>> EncodeRendered(std::string_view text,
                                                      char32_t /*guard*/,
                                                      bool add_special) const override {
    return Encode(text, {.add_special = add_special});
  }

  absl::StatusOr<std::string> Decode(std::span<const TokenId> ids,
                                     bool /*skip_special*/) const override {
    return std::string(ids.begin(), ids.end());
  }

  std::unique_ptr<text::DecodeStream> NewDecodeStream(bool /*skip_special*/) const override {
    return nullptr;
  }

  std::string_view TokenBytes(TokenId /*id*/) const override { return ""; }

  bool IsSpecial(TokenId /*id*/) const override { return false; }

  uint32_t vocab_size() const override { return 256; }

  std::optional<TokenId> bos_id() const override { return std::nullopt; }

  bool adds_bos() const override { return false; }

  std::span<const TokenId> end_ids() const override { return {}; }

  std::string_view bos_text() const override { return ""; }

  std::string_view eos_text() const override { return ""; }

  std::span<const std::string> special_texts() const override { return {}; }

  std::string_view kind() const override { return "pairs"; }

  std::string_view definition() const override { return ""; }
};

constexpr uint32_t kTokens = 12'000;

TEST(CutWindows, BeginAtSentencesAndDoNotOverlap) {
  const std::vector<Text> texts = {MakeStories(1, 600'000),
                                   {"short", "No. Not enough."},
                                   {"other", MakeStories(2, 300'000).content}};
  const auto windows = CutWindows(texts, PairTokenizer(), 6, kTokens);
  ASSERT_TRUE(windows.ok()) << windows.status();
  ASSERT_EQ(windows->size(), 6U);
  for (size_t i = 0; i < windows->size(); ++i) {
    const TextWindow& window = (*windows)[i];
    EXPECT_EQ(window.tokens.size(), kTokens);
    const std::string& content = window.source == "other" ? texts[2].content : texts[0].content;
    if (window.byte_begin > 0) {
      const std::string before = content.substr(0, window.byte_begin);
      EXPECT_NE(std::string(".!?").find(before[before.find_last_not_of(" \n")]), std::string::npos);
    }
    EXPECT_NE(content[window.byte_begin], ' ');
    if (i > 0 && (*windows)[i - 1].source == window.source) {
      EXPECT_GE(window.byte_begin - (*windows)[i - 1].byte_begin, 2U * kTokens);
    }
  }
  EXPECT_EQ(std::count_if(windows->begin(),
                          windows->end(),
                          [](const TextWindow& window) { return window.source == "other"; }),
            3);
}

TEST(CutWindows, ShortTextsAreRefusedWithWhatTheyGive) {
  const std::vector<Text> texts = {MakeStories(1, 2 * BytesPerWindow(kTokens) + 2'000)};
  const auto windows = CutWindows(texts, PairTokenizer(), 3, kTokens);
  EXPECT_THAT(windows.status().message(), HasSubstr("--windows 3"));
  EXPECT_THAT(windows.status().message(), HasSubstr("2 windows"));
}

TEST(Stories, TheSeedDecides) {
  EXPECT_EQ(MakeStories(4, 5'000).content, MakeStories(4, 5'000).content);
  EXPECT_NE(MakeStories(4, 5'000).content, MakeStories(5, 5'000).content);
  EXPECT_GE(MakeStories(4, 5'000).content.size(), 5'000U);
}

}  // namespace
}  // namespace spindle::eval
