// Bucketed LRU against exact LRU, and what happens to pages older than its range.
#include "kv/fast/bucketed_lru.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::kv {
namespace {

using kernels::kLruFree;
using kernels::kLruPinned;

// A group as the simulator has it: slots with their pages, and beside them the step of the last use
// of every slot, which is what exact LRU knows.
class Group {
 public:
  Group(const LruOptions& options, uint32_t num_slots)
      : lru(options, *kernels::BestKernels()),
        stamps(num_slots, kLruFree),
        page_of(num_slots, 0),
        last_use(num_slots, 0),
        out_(num_slots) {}

  struct Step {
    std::vector<uint64_t> ages;        // of the victims, in steps
    std::vector<uint64_t> exact_ages;  // of exact LRU's victims
    uint64_t oldest_left = 0;          // age of the oldest page that stayed
    uint64_t youngest_victim = ~uint64_t{0};
  };

  // One step with these distinct pages.
  Step Run(const std::vector<uint32_t>& pages) {
    ++now;
    lru.Advance(&state, stamps);
    std::vector<uint32_t> misses;
    for (const uint32_t page : pages) {
      const uint32_t slot = Find(page);
      if (slot == stamps.size()) {
        misses.push_back(page);
      } else {
        stamps[slot] = kLruPinned;
        last_use[slot] = now;
      }
    }
    Step step;
    const uint32_t free = static_cast<uint32_t>(std::count(stamps.begin(), stamps.end(), kLruFree));
    const auto num_misses = static_cast<uint32_t>(misses.size());
    step.exact_ages = OldestAges(num_misses > free ? num_misses - free : 0);
    const uint32_t count = lru.Take(&state, stamps, num_misses, out_);
    EXPECT_EQ(count, num_misses);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t slot = out_[i];
      if (stamps[slot] != kLruFree) {
        step.ages.push_back(now - last_use[slot]);
        step.youngest_victim = std::min(step.youngest_victim, now - last_use[slot]);
      }
      stamps[slot] = kLruPinned;
      page_of[slot] = misses[i];
      last_use[slot] = now;
    }
    for (size_t slot = 0; slot < stamps.size(); ++slot) {
      if (stamps[slot] != kLruFree) {
        step.oldest_left = std::max(step.oldest_left, now - last_use[slot]);
      }
    }
    BucketedLru::Unpin(state, stamps);
    std::sort(step.ages.begin(), step.ages.end());
    return step;
  }

  [[nodiscard]] uint32_t Find(uint32_t page) const {
    for (uint32_t slot = 0; slot < stamps.size(); ++slot) {
      if (stamps[slot] != kLruFree && page_of[slot] == page) {
        return slot;
      }
    }
    return static_cast<uint32_t>(stamps.size());
  }

  BucketedLru lru;
  LruState state;
  std::vector<uint8_t> stamps;
  std::vector<uint32_t> page_of;
  std::vector<uint64_t> last_use;
  uint64_t now = 0;

 private:
  [[nodiscard]] std::vector<uint64_t> OldestAges(uint32_t n) const {
    std::vector<uint64_t> ages;
    for (size_t slot = 0; slot < stamps.size(); ++slot) {
      if (stamps[slot] != kLruFree && stamps[slot] != kLruPinned) {
        ages.push_back(now - last_use[slot]);
      }
    }
    std::sort(ages.rbegin(), ages.rend());
    ages.resize(std::min<size_t>(n, ages.size()));
    std::reverse(ages.begin(), ages.end());
    return ages;
  }

  std::vector<uint32_t> out_;
};

// `count` distinct pages out of `universe`.
std::vector<uint32_t> Selection(uint32_t count, uint32_t universe, std::mt19937& rng) {
  std::vector<uint32_t> pages;
  while (pages.size() < count) {
    const auto page = static_cast<uint32_t>(rng() % universe);
    if (std::find(pages.begin(), pages.end(), page) == pages.end()) {
      pages.push_back(page);
    }
  }
  return pages;
}

TEST(BucketedLruTest, EqualsExactLruWhileAgesAreInRange) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(1)));
  for (const uint32_t range : {64U, 128U}) {
    Group group({.range = range}, 100);
    uint64_t max_age = 0;
    uint64_t num_victims = 0;
    for (uint32_t step = 0; step < 4000; ++step) {
      // 12 misses of 100 slots at most: a page stays for some 8 steps or more, and fewer than 32.
      const Group::Step result = group.Run(Selection(12, 400, rng));
      ASSERT_EQ(result.ages, result.exact_ages) << "step " << step;
      num_victims += result.ages.size();
      for (const uint64_t age : result.ages) {
        max_age = std::max(max_age, age);
      }
    }
    EXPECT_LT(max_age, range / 2);
    EXPECT_GT(num_victims, 10000U);
  }
}

TEST(BucketedLruTest, QuantumMayMisjudgeAgesByLessThanItself) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(2)));
  const uint32_t quantum = 4;
  Group group({.range = 64, .quantum_steps = quantum}, 100);
  uint32_t num_different = 0;
  for (uint32_t step = 0; step < 4000; ++step) {
    const Group::Step result = group.Run(Selection(12, 400, rng));
    ASSERT_EQ(result.ages.size(), result.exact_ages.size());
    for (size_t i = 0; i < result.ages.size(); ++i) {
      ASSERT_LT(result.exact_ages[i] - result.ages[i], quantum);
    }
    num_different += result.ages == result.exact_ages ? 0U : 1U;
  }
  EXPECT_GT(num_different, 100U);  // the bound is not trivially kept
}

TEST(BucketedLruTest, PagesUntouchedForLongGoBeforeAnyYoungerOne) {
  Group group({}, 40);
  std::vector<uint32_t> old_pages(8);
  for (uint32_t i = 0; i < 8; ++i) {
    old_pages[i] = 1000 + i;
  }
  for (uint32_t cycle = 0; cycle < 10; ++cycle) {
    group.Run(old_pages);
    // 10⁴ steps over 32 pages that fit beside the old ones, each used every 8 steps.
    for (uint32_t step = 0; step < 10000; ++step) {
      std::vector<uint32_t> pages(4);
      for (uint32_t i = 0; i < 4; ++i) {
        pages[i] = (4 * step + i) % 32;
      }
      const Group::Step result = group.Run(pages);
      ASSERT_TRUE(cycle > 0 || result.ages.empty());
    }
    // No stamp wrapped around: exactly the old pages go.
    const Group::Step step = group.Run({2000 + 8 * cycle,
                                        2001 + 8 * cycle,
                                        2002 + 8 * cycle,
                                        2003 + 8 * cycle,
                                        2004 + 8 * cycle,
                                        2005 + 8 * cycle,
                                        2006 + 8 * cycle,
                                        2007 + 8 * cycle});
    ASSERT_EQ(step.ages.size(), 8U);
    ASSERT_GE(step.youngest_victim, 10000U) << "cycle " << cycle;
    ASSERT_LE(step.oldest_left, 8U);
    for (const uint32_t page : old_pages) {
      ASSERT_EQ(group.Find(page), group.stamps.size());
    }
  }
}

TEST(BucketedLruTest, OldestBucketIsTakenInTurn) {
  Group group({.range = 4}, 32);
  std::vector<uint32_t> pages(32);
  for (uint32_t i = 0; i < 32; ++i) {
    pages[i] = i;
  }
  group.Run(pages);
  for (uint32_t step = 0; step < 50; ++step) {
    group.Run({});
  }
  // One page per step, never used again but after 30 steps older than the range as well: the hand
  // must have passed all 32 slots once before it takes one a second time.
  std::vector<uint32_t> evicted_steps(32, 0);
  for (uint32_t step = 0; step < 32; ++step) {
    const std::vector<uint32_t> before = group.page_of;
    group.Run({100 + step});
    for (uint32_t slot = 0; slot < 32; ++slot) {
      evicted_steps[slot] += before[slot] != group.page_of[slot] ? 1U : 0U;
    }
  }
  EXPECT_EQ(evicted_steps, std::vector<uint32_t>(32, 1));
}

TEST(BucketedLruTest, WorkingSetCountsRecentAndPinnedSlots) {
  const BucketedLru lru({}, *kernels::BestKernels());
  LruState state;
  std::vector<uint8_t> stamps(40, kLruFree);
  for (uint32_t step = 0; step < 200; ++step) {
    lru.Advance(&state, stamps);
    stamps[step % 40] = state.now;
    if (step >= 40) {
      ASSERT_EQ(lru.CountUsedWithin(state, stamps, 12), 12U) << step;
    }
  }
  stamps[0] = kLruPinned;
  stamps[1] = kLruFree;
  EXPECT_EQ(lru.CountUsedWithin(state, stamps, 1), 2U);
}

TEST(BucketedLruTest, RefusesOptionsOutOfRange) {
  EXPECT_TRUE(ValidateLruOptions({.range = 4, .quantum_steps = 64}).ok());
  EXPECT_TRUE(ValidateLruOptions({.range = 128, .quantum_steps = 1}).ok());
  for (const LruOptions& options : {LruOptions{.range = 2},
                                    LruOptions{.range = 65},
                                    LruOptions{.range = 130},
                                    LruOptions{.quantum_steps = 0},
                                    LruOptions{.quantum_steps = 65}}) {
    EXPECT_EQ(ValidateLruOptions(options).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace spindle::kv
