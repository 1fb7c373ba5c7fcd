// The fast tier: plans, passes, sizes, forks, pauses, limits.
#include "kv/fast/fast_tier.h"

#include <algorithm>
#include <thread>

#include <gtest/gtest.h>

#include "support/allocation_counter.h"
#include "unit/kv_fast/fast_tier_world.h"

namespace spindle::kv {
namespace {

class FastTierTest : public testing::Test {
 protected:
  explicit FastTierTest(const FastTierOptions& options = SmallTier(1024))
      : tier_(MakeTier(options)), plan_(512) {}

  CacheSetId Open(uint32_t pages, uint32_t frames) {
    const CacheSetId set = tier_->Open(BudgetGroupId(1), pages).value();
    EXPECT_TRUE(tier_->Resize(set, frames).ok());
    return set;
  }

  void Step(CacheSetId set, const std::vector<uint32_t>& pages, uint64_t sequence = 1) {
    tier_->BeginStep(set);
    AttendStep(*tier_, 0, Group(set, 0, 0), pages, sequence, &plan_);
  }

  void ExpectIntact() {
    const absl::Status status = tier_->CheckIntegrity();
    EXPECT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<FastTier> tier_;
  GroupPlan plan_;
};

TEST_F(FastTierTest, PagesStayUntilTheirFramesAreNeeded) {
  const CacheSetId set = Open(64, 16);
  Step(set, Range(0, 10));
  EXPECT_EQ(plan_.loads.size(), 10U);
  Step(set, Range(5, 15));
  EXPECT_EQ(plan_.loads.size(), 5U);
  Step(set, Range(20, 23));  // one free frame, then two of pages 0 … 4
  uint32_t gone = 0;
  for (uint32_t page = 0; page < 15; ++page) {
    const bool is_resident = tier_->FrameOf(Group(set, 0, 0), page) != kNoFrame;
    gone += is_resident ? 0U : 1U;
    EXPECT_TRUE(is_resident || page < 5) << page;
  }
  EXPECT_EQ(gone, 2U);
  const CacheSetStats stats = tier_->Stats(set);
  EXPECT_EQ(stats.hits, 5U);
  EXPECT_EQ(stats.misses, 18U);
  EXPECT_EQ(stats.evicted_replaced, 2U);
  EXPECT_EQ(stats.streamed, 0U);
  EXPECT_EQ(stats.resident_pages, 16U);
  ExpectIntact();
}

TEST_F(FastTierTest, GroupsAreIndependent) {
  const CacheSetId a = Open(64, 8);
  const CacheSetId b = Open(64, 8);
  for (uint32_t step = 0; step < 40; ++step) {
    uint64_t sequence = 1;
    for (const CacheSetId set : {a, b}) {
      tier_->BeginStep(set);
      for (uint32_t layer = 0; layer < 2; ++layer) {
        for (uint32_t head = 0; head < 3; ++head) {
          const uint32_t first = (step * (head + 1) + layer) % 50;
          AttendStep(*tier_, 0, Group(set, layer, head), Range(first, first + 6), sequence, &plan_);
        }
      }
      ++sequence;
    }
    ExpectIntact();
  }
}

TEST_F(FastTierTest, SelectionLargerThanTheGroupTakesPassesAndKeepsASteadyPart) {
  const CacheSetId set = Open(64, 16);
  Step(set, Range(0, 50));
  EXPECT_EQ(plan_.num_streamed, 34U);
  // A ring of 8 frames holds two tiles of 4 pages; the first pass also has the cached pages.
  EXPECT_GE(plan_.passes.size(), 5U);
  for (size_t i = 0; i + 1 < plan_.passes.size(); ++i) {
    EXPECT_EQ(plan_.passes[i].page_end % 4, 0U);  // cut at a tile border
  }
  // No page of a step is given up for another: cyclic scans keep their cached part.
  for (uint32_t step = 0; step < 5; ++step) {
    Step(set, Range(0, 50));
    EXPECT_EQ(plan_.loads.size(), 34U);
  }
  EXPECT_EQ(tier_->Stats(set).evicted_replaced, 0U);
  ExpectIntact();
}

// What dense attention and prefill do: the lowest pages stay, whatever the number of scans.
TEST_F(FastTierTest, FillingTakesFreeFramesAndEvictsNothing) {
  const CacheSetId set = Open(64, 16);
  const auto scan = [this, set](uint32_t end, Caching caching) {
    tier_->BeginStep(set);
    AttendStep(*tier_, 0, Group(set, 0, 0), Range(0, end), 1, &plan_, caching);
  };
  scan(10, Caching::kFill);
  EXPECT_EQ(plan_.num_streamed, 0U);
  for (uint32_t step = 0; step < 100; ++step) {  // ages beyond every bucket
    scan(50, Caching::kFill);
    ASSERT_EQ(plan_.num_streamed, 34U);
    ASSERT_EQ(plan_.loads.size(), step == 0 ? 40U : 34U);
  }
  for (uint32_t page = 0; page < 50; ++page) {
    EXPECT_EQ(tier_->FrameOf(Group(set, 0, 0), page) != kNoFrame, page < 16) << page;
  }
  EXPECT_EQ(tier_->Stats(set).evicted_replaced, 0U);
  EXPECT_EQ(tier_->Stats(set).refaults, 0U);
  ExpectIntact();
}

TEST_F(FastTierTest, StreamingCachesNothingAndUsesWhatIsThere) {
  const CacheSetId set = Open(64, 16);
  Step(set, Range(4, 12));
  tier_->BeginStep(set);
  AttendStep(*tier_, 0, Group(set, 0, 0), Range(0, 30), 1, &plan_, Caching::kStream);
  EXPECT_EQ(plan_.num_streamed, 22U);
  EXPECT_EQ(tier_->Stats(set).resident_pages, 8U);
  EXPECT_EQ(tier_->Stats(set).hits, 8U);
  ExpectIntact();
}

TEST_F(FastTierTest, GroupWithoutFramesStreamsEverything) {
  const CacheSetId set = Open(64, 0);
  for (uint32_t step = 0; step < 3; ++step) {
    Step(set, Range(0, 30));
    EXPECT_EQ(plan_.num_streamed, 30U);
  }
  EXPECT_EQ(tier_->Stats(set).resident_pages, 0U);
  Step(set, {});
  EXPECT_TRUE(plan_.passes.empty());
  ExpectIntact();
}

TEST_F(FastTierTest, PagesBeyondTheDirectoryAreStreamed) {
  const CacheSetId set = Open(64, 16);
  Step(set, {3, 200});
  EXPECT_EQ(plan_.num_streamed, 1U);
  Step(set, {3, 200});
  EXPECT_EQ(plan_.loads.size(), 1U);
  ASSERT_TRUE(tier_->Cover(set, 256).ok());
  Step(set, {3, 200});
  Step(set, {3, 200});
  EXPECT_EQ(plan_.loads.size(), 0U);
  EXPECT_EQ(tier_->Cover(set, FrameWord::kMaxPages + 1).code(), absl::StatusCode::kInvalidArgument);
  ExpectIntact();
}

TEST_F(FastTierTest, ReturningSoonAfterEvictionIsARefault) {
  const CacheSetId set = Open(64, 8);
  Step(set, Range(0, 8));
  Step(set, Range(8, 16));  // evicts 0 … 7
  Step(set, Range(0, 4));   // they come back
  EXPECT_EQ(tier_->Stats(set).refaults, 4U);
  for (uint32_t step = 0; step < 30; ++step) {
    Step(set, Range(20, 28));
  }
  Step(set, Range(0, 8));  // evicted more than two windows ago
  EXPECT_EQ(tier_->Stats(set).refaults, 4U);
  ExpectIntact();
}

TEST_F(FastTierTest, WorkingSetCountsTheWindowAndWhatDidNotFit) {
  const CacheSetId set = Open(512, 32);
  for (uint32_t step = 0; step < 40; ++step) {
    Step(set, {step, step + 1});
  }
  EXPECT_EQ(tier_->Stats(set).working_set_pages, 13U);  // 12 steps of sliding pairs
  ASSERT_TRUE(tier_->Resize(set, 8).ok());
  Step(set, Range(100, 120));
  EXPECT_EQ(tier_->Stats(set).working_set_pages, 20U);  // 8 cached, 12 streamed
}

TEST_F(FastTierTest, ShrinkingEvictsTheOldestAndMovesTheRest) {
  const CacheSetId set = Open(64, 32);
  for (uint32_t page = 0; page < 32; ++page) {
    Step(set, {page});
  }
  ASSERT_TRUE(tier_->Resize(set, 16).ok());
  for (uint32_t page = 0; page < 32; ++page) {
    EXPECT_EQ(tier_->FrameOf(Group(set, 0, 0), page) != kNoFrame, page >= 16) << page;
  }
  EXPECT_EQ(tier_->Stats(set).evicted_shrunk, 16U);
  EXPECT_EQ(tier_->Stats(set).frames, 6U * 16);
  ExpectIntact();
  Step(set, Range(16, 32));  // contents moved along: AttendStep compares them
  EXPECT_EQ(plan_.loads.size(), 0U);
}

TEST_F(FastTierTest, ShrinkingToTheFloorAndBackLosesNoFrame) {
  const CacheSetId set = Open(64, 32);
  const uint64_t free = tier_->num_free_frames();
  for (uint32_t cycle = 0; cycle < 1000; ++cycle) {
    Step(set, Range(cycle % 20, cycle % 20 + 30));
    ASSERT_TRUE(tier_->Resize(set, 8).ok());
    ASSERT_EQ(tier_->num_free_frames(), free + 6 * 24);
    ASSERT_TRUE(tier_->Resize(set, 32).ok());
    ASSERT_EQ(tier_->num_free_frames(), free);
  }
  ExpectIntact();
}

TEST_F(FastTierTest, GrowthBeyondTheTierChangesNothing) {
  const CacheSetId a = Open(64, 64);
  const CacheSetId b = Open(64, 64);  // 768 of 1008 frames
  Step(a, Range(0, 40));
  const uint64_t free = tier_->num_free_frames();
  EXPECT_EQ(tier_->Resize(b, 112).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(tier_->num_free_frames(), free);
  EXPECT_EQ(tier_->Stats(b).frames, 6U * 64);
  ASSERT_TRUE(tier_->Resize(b, 104).ok());
  EXPECT_EQ(tier_->num_free_frames(), 0U);
  ExpectIntact();
}

TEST_F(FastTierTest, AbortGivesBackTheFramesOfLoads) {
  const CacheSetId set = Open(64, 16);
  Step(set, Range(0, 8));
  tier_->BeginStep(set);
  const std::vector<uint32_t> pages = Range(4, 20);
  tier_->Plan(0, 0, Group(set, 0, 0), pages, Caching::kLru, &plan_);
  EXPECT_FALSE(tier_->CheckIntegrity().ok());  // pinned pages and unfinished loads are seen
  tier_->Abort(0, Group(set, 0, 0), pages, plan_);
  ExpectIntact();
  for (uint32_t page = 8; page < 20; ++page) {
    EXPECT_EQ(tier_->FrameOf(Group(set, 0, 0), page), kNoFrame);
  }
  Step(set, Range(4, 8));
  EXPECT_EQ(plan_.loads.size(), 0U);
}

TEST_F(FastTierTest, ForkBeginsWithTheYoungestPagesOfItsParent) {
  const CacheSetId parent = Open(64, 24);
  for (uint32_t page = 0; page < 20; ++page) {
    Step(parent, {page});
  }
  const CacheSetId child = Open(64, 8);
  EXPECT_EQ(tier_->Adopt(child, parent), 8U);
  for (uint32_t page = 0; page < 20; ++page) {
    EXPECT_EQ(tier_->FrameOf(Group(child, 0, 0), page) != kNoFrame, page >= 12) << page;
  }
  ExpectIntact();
  // Content and ages came along: the next victim is the oldest of them.
  Step(child, {13, 40});
  EXPECT_EQ(plan_.loads.size(), 1U);
  EXPECT_EQ(tier_->FrameOf(Group(child, 0, 0), 12), kNoFrame);
  Step(parent, Range(0, 20));
  EXPECT_EQ(plan_.loads.size(), 0U);
  ExpectIntact();
}

TEST_F(FastTierTest, PauseGivesBackEverythingAndResumeStartsCold) {
  const uint64_t free = tier_->num_free_frames();
  const CacheSetId set = Open(200, 32);
  Step(set, Range(0, 30));
  tier_->Drop(set);
  EXPECT_EQ(tier_->num_free_frames(), free);
  const FastMetadataBytes bytes = tier_->MetadataBytes();
  EXPECT_EQ(bytes.directory + bytes.leaves + bytes.run_tables + bytes.refault_maps, 0U);
  EXPECT_EQ(tier_->Stats(set).evicted_dropped, 30U);
  EXPECT_EQ(tier_->Stats(set).misses, 30U);
  ExpectIntact();
  ASSERT_TRUE(tier_->Cover(set, 200).ok());
  ASSERT_TRUE(tier_->Resize(set, 32).ok());
  Step(set, Range(0, 30));
  EXPECT_EQ(plan_.loads.size(), 30U);
  tier_->Close(set);
  EXPECT_EQ(tier_->num_free_frames(), free);
  ExpectIntact();
}

TEST_F(FastTierTest, SteadyStateAllocatesNothing) {
  const CacheSetId set = Open(512, 32);
  const auto run = [&](uint32_t steps) {
    for (uint32_t step = 0; step < steps; ++step) {
      tier_->BeginStep(set);
      for (uint32_t head = 0; head < 3; ++head) {
        uint32_t pages[24];
        for (uint32_t i = 0; i < 24; ++i) {
          pages[i] = (step * 7 + head) % 100 + i * (head + 5);
        }
        tier_->Plan(0, 0, Group(set, 0, head), pages, Caching::kLru, &plan_);
        tier_->Commit(Group(set, 0, head), plan_);
      }
      if (step % 50 == 49) {
        ASSERT_TRUE(tier_->Resize(set, step % 100 == 99 ? 32 : 16).ok());
      }
    }
    tier_->Drop(set);
    ASSERT_TRUE(tier_->Cover(set, 512).ok());
    ASSERT_TRUE(tier_->Resize(set, 32).ok());
  };
  run(200);
  const uint64_t before = test::AllocationCount();
  run(400);
  EXPECT_EQ(test::AllocationCount(), before);
  EXPECT_GT(tier_->Stats(set).evicted_replaced, 1000U);
}

TEST_F(FastTierTest, WorkersShareNothingButLeaves) {
  const CacheSetId a = Open(4096, 64);
  const CacheSetId b = Open(4096, 64);
  // Each thread has one set; leaves come from and go to the same slab.
  const auto work = [this](uint32_t worker, CacheSetId set) {
    GroupPlan plan(64);
    for (uint32_t step = 0; step < 400; ++step) {
      for (uint32_t head = 0; head < 3; ++head) {
        std::vector<uint32_t> pages;
        for (uint32_t i = 0; i < 40; ++i) {
          pages.push_back((step * 31 + head) % 64 + i * (1 + (step / 20) % 60));
        }
        AttendStep(*tier_, worker, Group(set, worker, head), pages, 1 + worker, &plan);
      }
    }
  };
  tier_->BeginStep(a);
  tier_->BeginStep(b);
  std::thread other(work, 1, b);
  work(0, a);
  other.join();
  ExpectIntact();
}

class FullMetadataTest : public FastTierTest {
 protected:
  static FastTierOptions Options() {
    FastTierOptions options = SmallTier(1024);
    options.metadata_bytes = 3 * 4096;  // entries and maps, run tables; no leaf
    return options;
  }

  FullMetadataTest() : FastTierTest(Options()) {}
};

TEST_F(FullMetadataTest, PagesWithoutALeafAreReadAndNotCached) {
  const CacheSetId set = Open(40 * 64, 128);
  uint64_t streamed = 0;
  for (uint32_t step = 0; step < 60; ++step) {
    std::vector<uint32_t> pages;
    for (uint32_t i = 0; i < 40; ++i) {
      pages.push_back(i * 64 + step);
    }
    Step(set, pages);  // attends to every page all the same
    streamed += plan_.num_streamed;
    ExpectIntact();
  }
  EXPECT_GT(streamed, 0U);
  EXPECT_EQ(tier_->Stats(set).resident_pages, 80U);  // two per region, which need no leaf
  const auto refused = tier_->Open(BudgetGroupId(2), FrameWord::kMaxPages);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  ExpectIntact();
}

TEST(FastTierOptionsTest, RefusesValuesOutOfRange) {
  const auto refused = [](auto change) {
    FastTierOptions options = SmallTier(1024);
    change(options);
    return FastTier::Create(options, *kernels::BestKernels()).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](FastTierOptions&) {}));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.num_workers = 0; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.num_rings = 0; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.ring_frames = 0; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.ring_frames = 12; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.pass_unit_tokens = 0; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.pass_unit_tokens = 96; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.pass_unit_tokens = 2048; }));
  // A ring must hold the pages of a whole unit.
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.pass_unit_tokens = 1024; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.max_group_frames = 65536; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.window_steps = 0; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.lru.range = 3; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.geometry.head_dim = 7; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.fast_bytes = 15 * 4096; }));
  EXPECT_TRUE(refused([](FastTierOptions& o) { o.metadata_bytes = 0; }));
}

}  // namespace
}  // namespace spindle::kv
