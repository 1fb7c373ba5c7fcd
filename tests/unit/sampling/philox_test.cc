#include "sampling/philox.h"

#include <array>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

namespace spindle::sampling {
namespace {

// Known answers of the algorithm's authors (kat_vectors of Random123, philox4x32, 10 rounds).
TEST(Philox, MatchesTheKnownAnswers) {
  struct Case {
    PhiloxBlock counter;
    PhiloxKey key;
    PhiloxBlock expected;
  };

  const std::array<Case, 3> cases = {
      {{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
       {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
        {0xffffffff, 0xffffffff},
        {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
       {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
        {0xa4093822, 0x299f31d0},
        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}}};
  for (const Case& c : cases) {
    EXPECT_EQ(Philox4x32(c.counter, c.key), c.expected);
  }
}

TEST(UniformAt, IsInRangeAndDiffersInEachCoordinate) {
  std::set<double> seen;
  double sum = 0.0;
  int count = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
    for (const uint32_t choice : {0U, 1U, 127U}) {
      for (uint64_t position = 0; position < 1000; ++position) {
        const double u = UniformAt(seed, choice, position);
        ASSERT_GE(u, 0.0);
        ASSERT_LT(u, 1.0);
        seen.insert(u);
        sum += u;
        ++count;
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(count));
  // Five standard deviations of the mean of uniform values.
  EXPECT_NEAR(sum / count, 0.5, 5.0 / std::sqrt(12.0 * count));
}

}  // namespace
}  // namespace spindle::sampling
