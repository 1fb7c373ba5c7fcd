// The generator against a second implementation on numpy's PCG64 (tools/golden/page_selections.py).
#include "kv/sim/selection_generator.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kv/sim/pcg64.h"
#include "kv/sim/selection_trace.h"

namespace spindle::kv::sim {
namespace {

std::vector<std::string> GoldenLines() {
  std::ifstream file(std::string(SPINDLE_TEST_GOLDEN_DIR) + "/kv/page_selections.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
  }
  return lines;
}

TEST(Pcg64, GivesTheNumbersOfThePublishedGenerator) {
  int checked = 0;
  for (const std::string& line : GoldenLines()) {
    std::istringstream in(line);
    std::string kind;
    uint64_t seed = 0;
    uint64_t stream = 0;
    char colon = 0;
    in >> kind;
    if (kind != "pcg") {
      continue;
    }
    in >> seed >> stream >> colon;
    Pcg64 random(seed, stream);
    for (uint64_t expected = 0; in >> std::hex >> expected;) {
      ASSERT_EQ(random.Next(), expected) << line;
      ++checked;
    }
  }
  EXPECT_EQ(checked, 18);
}

TEST(Pcg64, BoundedNumbersCoverTheirRange) {
  Pcg64 random(1, 2);
  std::vector<int> counts(7);
  for (int i = 0; i < 70'000; ++i) {
    const uint64_t value = random.Below(7);
    ASSERT_LT(value, 7U);
    ++counts[value];
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 10'000, 500);  // five standard deviations
  }
  EXPECT_EQ(random.Below(1), 0U);
}

TEST(Pcg64, NormalDeviatesHaveTheirMoments) {
  Pcg64 random(3, 0);
  constexpr int kCount = 100'000;
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  for (int i = 0; i < kCount; ++i) {
    const double value = random.Normal();
    sum += value;
    squares += value * value;
    fourths += value * value * value * value;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.016);
  EXPECT_NEAR(squares / kCount, 1.0, 0.023);
  EXPECT_NEAR(fourths / kCount, 3.0, 0.16);
}

TEST(SelectionGenerator, SelectsWhatTheSecondImplementationSelects) {
  int checked = 0;
  for (const std::string& line : GoldenLines()) {
    std::istringstream in(line);
    std::string name;
    in >> name;
    const auto profile = FindSelectionProfile(name);
    if (!profile.has_value()) {
      continue;
    }
    SelectionOptions options;
    options.profile = *profile;
    uint32_t grown = 0;
    uint32_t step = 0;
    char colon = 0;
    in >> options.seed >> options.stream >> options.num_pages >> options.selected_pages >> grown >>
        step >> colon;
    std::vector<uint32_t> expected;
    for (uint32_t page = 0; in >> page;) {
      expected.push_back(page);
    }
    SelectionGenerator generator(options);
    std::vector<uint32_t> pages;
    for (uint32_t i = 0; i <= step; ++i) {
      if (i == 3) {
        generator.Grow(grown);
      }
      generator.Next(&pages);
    }
    ASSERT_EQ(pages, expected) << line;
    ++checked;
  }
  EXPECT_EQ(checked, 35);
}

TEST(SelectionGenerator, StreamsOfOneSeedDiffer) {
  std::vector<uint32_t> first;
  std::vector<uint32_t> second;
  SelectionGenerator({.seed = 4, .stream = 0}).Next(&first);
  SelectionGenerator({.seed = 4, .stream = 1}).Next(&second);
  EXPECT_NE(first, second);
}

TEST(SelectionGenerator, SelectsAllPagesOfASmallContext) {
  for (const uint32_t num_pages : {1U, 5U, 31U}) {
    SelectionGenerator generator({.profile = {.shift_probability = 1.0},
                                  .num_pages = num_pages,
                                  .selected_pages = num_pages});
    std::vector<uint32_t> pages;
    for (int step = 0; step < 20; ++step) {
      generator.Next(&pages);
      ASSERT_EQ(pages.size(), num_pages);
      for (uint32_t page = 0; page < num_pages; ++page) {
        ASSERT_EQ(pages[page], page);
      }
    }
  }
}

TEST(SelectionGenerator, TiesGoToTheLowerPages) {
  // Without weights all scores are zero.
  SelectionGenerator generator({.profile = {}, .num_pages = 50, .selected_pages = 4});
  std::vector<uint32_t> pages;
  generator.Next(&pages);
  EXPECT_EQ(pages, (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST(SelectionTrace, OverlapCountsPagesOfTheWindowBefore) {
  SelectionTrace trace(10, 1);
  trace.Append(std::vector<uint32_t>{1, 2});  // warm-up
  trace.Append(std::vector<uint32_t>{2, 3});  // 2
  trace.Append(std::vector<uint32_t>{1, 4});  // 1 two steps ago
  trace.Append(std::vector<uint32_t>{});
  trace.Append(std::vector<uint32_t>{2, 4});  // 4 two steps ago, 2 three
  EXPECT_EQ(trace.num_counted_accesses(), 6U);
  EXPECT_DOUBLE_EQ(OverlapWithWindow(trace, 1), 1.0 / 6);
  EXPECT_DOUBLE_EQ(OverlapWithWindow(trace, 2), 3.0 / 6);
  EXPECT_DOUBLE_EQ(OverlapWithWindow(trace, 3), 4.0 / 6);
}

}  // namespace
}  // namespace spindle::kv::sim
