#include "eval/free_run.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::eval {
namespace {

// Every pair of positions.
uint32_t LongestRepeatOf(const std::vector<TokenId>& tokens) {
  uint32_t longest = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (size_t j = i + 1; j < tokens.size(); ++j) {
      uint32_t length = 0;
      while (j + length < tokens.size() && tokens[i + length] == tokens[j + length]) {
        ++length;
      }
      longest = std::max(longest, length);
    }
  }
  return longest;
}

TEST(FreeRun, LongestRepeatIsThatOfAllPairs) {
  const uint64_t seed = test::RandomSeed(11);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    std::vector<TokenId> tokens(random() % 60);
    for (TokenId& token : tokens) {
      token = static_cast<TokenId>(random() % 4);
    }
    EXPECT_EQ(LongestRepeat(tokens), LongestRepeatOf(tokens)) << "seed " << seed;
  }
  EXPECT_EQ(LongestRepeat(std::vector<TokenId>{7, 7, 7, 7}), 3U) << "a loop";
  EXPECT_EQ(LongestRepeat({}), 0U);
}

TEST(FreeRun, DistinctTrigramsCountPositions) {
  EXPECT_DOUBLE_EQ(DistinctTrigrams(std::vector<TokenId>{1, 2, 3, 1, 2, 3}), 0.75);
  EXPECT_DOUBLE_EQ(DistinctTrigrams(std::vector<TokenId>{1, 1, 1, 1, 1, 1}), 0.25);
  EXPECT_DOUBLE_EQ(DistinctTrigrams(std::vector<TokenId>{1, 2}), 1);
}

}  // namespace
}  // namespace spindle::eval
