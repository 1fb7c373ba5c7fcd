#include "serving/choice_text.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/utf8.h"
#include "serving/stop_matcher.h"

namespace spindle::serving {
namespace {

// The definition, straight: of all matches the one that ends first; of several with the same end
// the one that begins first.
struct NaiveMatch {
  bool found = false;
  size_t begin = 0;
  size_t end = 0;
};

NaiveMatch FirstMatch(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t begin = 0; begin < end; ++begin) {
      const std::string piece = text.substr(begin, end - begin);
      if (std::find(stops.begin(), stops.end(), piece) != stops.end()) {
        return {true, begin, end};
      }
    }
  }
  return {};
}

// How much of `text` must be held back: the longest suffix that is a proper prefix of a stop.
size_t LongestPossiblePrefix(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t length = text.size(); length > 0; --length) {
    const std::string tail = text.substr(text.size() - length);
    for (const std::string& stop : stops) {
      if (length < stop.size() && stop.starts_with(tail)) {
        return length;
      }
    }
  }
  return 0;
}

std::string RandomText(std::mt19937& random, size_t max_length) {
  // A small alphabet, so that borders and overlaps are common; é is two bytes.
  const std::vector<std::string> letters = {"a", "b", "ab", "\xC3\xA9", "aa"};
  std::string text;
  const size_t count = 1 + random() % max_length;
  for (size_t i = 0; i < count; ++i) {
    text += letters[random() % letters.size()];
  }
  return text;
}

struct Played {
  std::string text;
  std::vector<std::string> deltas;
  std::vector<size_t> token_bytes;  // bytes of the released tokens, in order
  bool stopped = false;
  std::string stop;
  size_t pushed = 0;  // tokens until the stop
};

Played Play(const std::vector<std::string>& tokens,
            const std::vector<std::string>& stops,
            bool include_stop) {
  const StopSet set(stops);
  ChoiceText choice(set, {.include_stop = include_stop});
  Played played;
  const auto collect = [&](const ReleasedText& released) {
    played.text += released.text;
    if (!released.text.empty()) {
      played.deltas.push_back(released.text);
    }
    for (const TokenLogprob& token : released.tokens) {
      played.token_bytes.push_back(token.bytes.size());
    }
    EXPECT_TRUE(released.tokens.empty() || !released.text.empty());
  };
  for (const std::string& bytes : tokens) {
    TokenLogprob token{};
    token.bytes = bytes;
    ++played.pushed;
    const std::optional<size_t> stop = choice.Push(std::move(token), /*is_text=*/true);
    if (stop.has_value()) {
      played.stopped = true;
      played.stop = stops[*stop];
      break;
    }
    collect(choice.Release(/*final=*/false));
  }
  collect(choice.Release(/*final=*/true));
  return played;
}

std::vector<std::string> Cut(const std::string& text, std::mt19937& random) {
  std::vector<std::string> pieces;
  for (size_t pos = 0; pos < text.size();) {
    const size_t length = std::min<size_t>(1 + random() % 4, text.size() - pos);
    pieces.push_back(text.substr(pos, length));
    pos += length;
  }
  return pieces;
}

TEST(ChoiceText, MatchesTheDefinitionOnRandomTextsAndCuts) {
  constexpr uint32_t kSeed = 7;
  std::mt19937 random(kSeed);
  int stopped = 0;
  for (int round = 0; round < 4000; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " round " << round);
    const std::string text = RandomText(random, 14);
    std::vector<std::string> stops;
    const size_t num_stops = random() % 4;
    for (size_t i = 0; i < num_stops; ++i) {
      stops.push_back(RandomText(random, 4));
    }
    const bool include_stop = random() % 2 == 0;
    const std::vector<std::string> tokens = Cut(text, random);
    const Played played = Play(tokens, stops, include_stop);

    const NaiveMatch match = FirstMatch(text, stops);
    ASSERT_EQ(played.stopped, match.found);
    const size_t end = !match.found ? text.size() : include_stop ? match.end : match.begin;
    ASSERT_EQ(played.text, text.substr(0, end));
    for (const std::string& delta : played.deltas) {
      ASSERT_EQ(delta, ToValidUtf8(delta)) << "a delta splits a character";
    }
    // Tokens: all that begin before the end of the text, in order.
    std::vector<size_t> expected;
    size_t begin = 0;
    size_t completing = 0;
    for (const std::string& token : tokens) {
      if (begin < end) {
        expected.push_back(token.size());
      }
      if (match.found && begin < match.end) {
        ++completing;
      }
      begin += token.size();
    }
    ASSERT_EQ(played.token_bytes, expected);
    if (match.found) {
      ++stopped;
      ASSERT_EQ(played.stop, text.substr(match.begin, match.end - match.begin));
      ASSERT_EQ(played.pushed, completing);
    }
  }
  EXPECT_GT(stopped, 1300);
  EXPECT_LT(stopped, 3700);
}

TEST(ChoiceText, HoldsBackOnlyWhatMayBecomeAStop) {
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 3000; ++round) {
    const std::string text = RandomText(random, 12);
    const std::vector<std::string> stops = {RandomText(random, 5), RandomText(random, 5)};
    if (FirstMatch(text, stops).found) {
      continue;
    }
    const StopSet set(stops);
    ChoiceText choice(set, {});
    std::string shown;
    std::string seen;
    for (const std::string& bytes : Cut(text, random)) {
      TokenLogprob token{};
      token.bytes = bytes;
      ASSERT_FALSE(choice.Push(std::move(token), /*is_text=*/true).has_value());
      shown += choice.Release(/*final=*/false).text;
      seen += bytes;
      size_t decided = seen.size() - LongestPossiblePrefix(seen, stops);
      while (decided > 0 && decided < seen.size() && (seen[decided] & 0xC0) == 0x80) {
        --decided;  // inside a character
      }
      if (decided == seen.size() && (seen.back() & 0xE0) == 0xC0) {
        --decided;  // its second byte is missing
      }
      ASSERT_EQ(shown, seen.substr(0, decided)) << "seed " << kSeed << " round " << round;
    }
  }
}

TEST(ChoiceText, TheLongestOfStopsThatEndTogetherWins) {
  const Played played = Play({"xx", "abc"}, {"c", "bc", "abc", "abcd"}, false);
  EXPECT_EQ(played.stop, "abc");
  EXPECT_EQ(played.text, "xx");
}

TEST(ChoiceText, AMatchDoesNotReachIntoALongerPartialOne) {
  // When "ya" completes, "xya" has matched three of its four bytes.
  const Played played = Play({"_xya"}, {"xyab", "ya"}, false);
  EXPECT_EQ(played.stop, "ya");
  EXPECT_EQ(played.text, "_x");
}

TEST(ChoiceText, UnfinishedCharactersWaitAndEndAsReplacements) {
  const StopSet none({});
  ChoiceText choice(none, {});
  const auto push = [&choice](std::string bytes) {
    TokenLogprob token{};
    token.bytes = std::move(bytes);
    EXPECT_FALSE(choice.Push(std::move(token), true).has_value());
    return choice.Release(false);
  };
  EXPECT_EQ(push("A\xF0\x9F").text, "A");
  EXPECT_EQ(push("\x98").text, "");
  const ReleasedText smile = push("\x80!");
  EXPECT_EQ(smile.text, "\xF0\x9F\x98\x80!");
  EXPECT_EQ(smile.tokens.size(), 2U);
  EXPECT_EQ(push("\xFF z").text, "\xEF\xBF\xBD z");
  EXPECT_EQ(push("\xE2\x82").text, "");
  EXPECT_EQ(choice.Release(true).text, "\xEF\xBF\xBD");
}

TEST(ChoiceText, OffsetsCountCodePointsFromTheEcho) {
  const StopSet none({});
  ChoiceText choice(none, {.first_offset = 10});
  std::vector<uint64_t> offsets;
  for (const char* bytes : {"\xC3\xA9\xC3\xA9", "a\xE2", "\x82\xAC", "b", "c"}) {
    TokenLogprob token{};
    token.bytes = bytes;
    EXPECT_FALSE(choice.Push(std::move(token), true).has_value());
    for (const TokenLogprob& released : choice.Release(false).tokens) {
      offsets.push_back(released.text_offset);
    }
  }
  EXPECT_THAT(offsets, testing::ElementsAre(10, 12, 13, 14, 15));
}

TEST(ChoiceText, SkippedTokensTravelWithTheNextTextOrNotAtAll) {
  const StopSet none({});
  ChoiceText choice(none, {});
  const auto push = [&choice](std::string bytes, bool is_text) {
    TokenLogprob token{};
    token.bytes = std::move(bytes);
    EXPECT_FALSE(choice.Push(std::move(token), is_text).has_value());
    return choice.Release(false).tokens.size();
  };
  EXPECT_EQ(push("<x>", false), 0U);
  EXPECT_EQ(push("a", true), 2U);
  EXPECT_EQ(push("<x>", false), 0U);
  EXPECT_TRUE(choice.Release(true).tokens.empty());
}

TEST(StopMatcher, LongRepetitiveStopsCostLinearTime) {
  // 1,024 equal bytes followed by another one make naive restarts quadratic; here every byte is fed
  // once and what is held never exceeds the string.
  const std::string stop = std::string(1023, 'a') + 'b';
  const StopSet set({stop});
  StopMatcher matcher(set);
  for (int i = 0; i < 200000; ++i) {
    ASSERT_FALSE(matcher.Feed('a').has_value());
    ASSERT_LE(matcher.held(), 1023U);
  }
  EXPECT_EQ(matcher.Feed('b'), 0U);
}

}  // namespace
}  // namespace spindle::serving
