#include "sampling/token_counts.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

namespace spindle::sampling {
namespace {

TEST(TokenCounts, AgreesWithAMapOnRandomTokens) {
  std::mt19937 random(7);
  TokenCounts counts;
  for (int round = 0; round < 20; ++round) {
    std::map<TokenId, uint32_t> expected;
    counts.Reserve(300);
    for (int i = 0; i < 2000; ++i) {
      // Multiples of a power of two collide in the low bits.
      const auto token = static_cast<TokenId>(random() % 300) * 1024;
      if (random() % 3 == 0) {
        counts.AddPrompt(token);
        expected.try_emplace(token, 0);
      } else {
        counts.AddGenerated(token);
        ++expected[token];
      }
    }
    ASSERT_EQ(counts.entries().size(), expected.size());
    for (const TokenCounts::Entry& entry : counts.entries()) {
      EXPECT_EQ(entry.generated, expected.at(entry.token));
    }
  }
}

}  // namespace
}  // namespace spindle::sampling
