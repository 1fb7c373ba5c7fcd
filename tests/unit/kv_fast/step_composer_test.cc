#include "kv/fast/step_composer.h"

#include <algorithm>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::kv {
namespace {

std::string Compose(const std::vector<StepCandidate>& candidates, uint64_t capacity) {
  std::vector<uint32_t> order;
  std::vector<uint8_t> out(candidates.size());
  const uint32_t count = ComposeStep(candidates, capacity, &order, out);
  std::string chosen;
  for (const uint8_t takes_part : out) {
    chosen += takes_part != 0 ? 'x' : '.';
  }
  EXPECT_EQ(static_cast<size_t>(count), std::count(chosen.begin(), chosen.end(), 'x'));
  return chosen;
}

TEST(StepComposerTest, Table) {
  EXPECT_EQ(Compose({}, 10), "");
  EXPECT_EQ(Compose({{1, 4, 0}, {1, 5, 0}}, 9), "xx");  // exactly full
  EXPECT_EQ(Compose({{1, 4, 0}, {1, 6, 0}}, 9), "x.");  // one too many
  EXPECT_EQ(Compose({{6, 4, 0}, {4, 1, 0}}, 9), "x.");  // floors count where they are larger
  EXPECT_EQ(Compose({{1, 4, 0}, {1, 9, 0}, {1, 1, 0}}, 9), "x..");  // schedule order is kept
  EXPECT_EQ(Compose({{1, 40, 0}, {1, 1, 0}}, 9), "x.");             // the first always takes part
  EXPECT_EQ(Compose({{1, 5, 0}, {1, 5, 62}}, 9), "x.");             // not yet overdue
  EXPECT_EQ(Compose({{1, 5, 0}, {1, 5, 63}}, 9), ".x");             // overdue goes first
  EXPECT_EQ(Compose({{1, 5, 63}, {1, 5, 64}}, 9), ".x");            // longest wait first
}

TEST(StepComposerTest, EverybodyRunsOnceIn64StepsAndTheTierIsNotOverfilled) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(1)));
  std::vector<StepCandidate> candidates(40);
  for (StepCandidate& candidate : candidates) {
    candidate.floor_frames = 10 + rng() % 10;
    candidate.working_set_frames = 10 + rng() % 40;
  }
  std::vector<uint32_t> order;
  std::vector<uint8_t> out(candidates.size());
  for (uint32_t step = 0; step < 2000; ++step) {
    ComposeStep(candidates, 150, &order, out);
    uint64_t used = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      used +=
          out[i] != 0 ? std::max(candidates[i].floor_frames, candidates[i].working_set_frames) : 0;
      candidates[i].skipped_steps = out[i] != 0 ? 0 : candidates[i].skipped_steps + 1;
      // At least 3 fit a step, so 40 of them need 14 steps once they are overdue.
      ASSERT_LE(candidates[i].skipped_steps, kMaxSkippedSteps + 14);
    }
    ASSERT_LE(used, 150U);
  }
}

}  // namespace
}  // namespace spindle::kv
