#include "base/utf8.h"

#include <string>

#include <gtest/gtest.h>

namespace spindle {
namespace {

struct Row {
  std::string bytes;
  std::string text;
  uint64_t code_points;
};

TEST(Utf8, BadSequencesBecomeOneReplacementPerMaximalPrefix) {
  const std::string fffd(kReplacementCharacter);
  for (const Row& row : {Row{"", "", 0},
                         Row{"a\xC3\xA9", "a\xC3\xA9", 2},
                         Row{"\x80\x80", fffd + fffd, 2},
                         Row{"\xE2\x82", fffd, 1},
                         Row{"\xE2\x82z", fffd + "z", 2},
                         Row{"\xF0\x9F\x98", fffd, 1},
                         Row{"\xE0\x9F\x80", fffd + fffd + fffd, 3},
                         Row{"\xED\xA0\x80", fffd + fffd + fffd, 3},
                         Row{"\xF0\x8F\xBF\xBF", fffd + fffd + fffd + fffd, 4},
                         Row{"\xF4\x90\x80\x80", fffd + fffd + fffd + fffd, 4},
                         Row{"\xC0\xAF", fffd + fffd, 2},
                         Row{"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF", 1}}) {
    EXPECT_EQ(ToValidUtf8(row.bytes), row.text);
    EXPECT_EQ(CountCodePoints(row.bytes), row.code_points);
    EXPECT_EQ(IsUtf8(row.bytes), row.bytes == row.text);
  }
}

TEST(Utf8, AnUnfinishedCharacterWaits) {
  std::string out = "<";
  EXPECT_EQ(AppendLossyUtf8("\xFFz\xF0\x9F\x98", out), 2U);
  EXPECT_EQ(out, "<\xEF\xBF\xBDz");
  EXPECT_EQ(NextUtf8Unit("\xF0\x9F\x98").kind, Utf8Unit::Kind::kTruncated);
  EXPECT_EQ(AppendLossyUtf8("\xF0\x9F\x98\x80", out), 4U);
  EXPECT_EQ(out, "<\xEF\xBF\xBDz\xF0\x9F\x98\x80");
}

TEST(Utf8, EveryScalarValueIsOneCharacter) {
  size_t expected_length = 1;
  for (char32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point < 0xE000) {
      continue;  // surrogates
    }
    if (code_point == 0x80 || code_point == 0x800 || code_point == 0x10000) {
      ++expected_length;
    }
    std::string text;
    AppendUtf8(code_point, text);
    const Utf8Unit unit = NextUtf8Unit(text);
    ASSERT_EQ(unit.kind, Utf8Unit::Kind::kValid) << static_cast<uint32_t>(code_point);
    ASSERT_EQ(unit.length, expected_length);
    ASSERT_EQ(text.size(), expected_length);
    // Decoded by hand.
    char32_t decoded = static_cast<uint8_t>(text[0]) &
                       (expected_length == 1 ? 0x7FU : 0xFFU >> (expected_length + 1));
    for (size_t i = 1; i < text.size(); ++i) {
      decoded = decoded << 6 | (static_cast<uint8_t>(text[i]) & 0x3FU);
    }
    ASSERT_EQ(decoded, code_point);
  }
}

}  // namespace
}  // namespace spindle
