// Frames: addresses, bounds, runs and words.
#include "kv/fast/frame_pool.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::kv {
namespace {

FramePool MakePool(uint64_t bytes, size_t page_bytes) {
  auto pool = FramePool::Create(bytes, page_bytes);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(FramePoolTest, FramesAreAlignedDistinctAndInsideTheBound) {
  for (const size_t page_bytes : {64U, 4096U, 4100U, 5120U, 2176U}) {
    const uint64_t bytes = uint64_t{3} << 20;
    FramePool pool = MakePool(bytes, page_bytes);
    EXPECT_EQ(pool.stride_bytes() % 64, 0U);
    EXPECT_GE(pool.stride_bytes(), page_bytes);
    EXPECT_LE(pool.num_frames() * pool.stride_bytes(), bytes);
    EXPECT_GT((pool.num_frames() + kRunFrames) * pool.stride_bytes(), bytes);
    EXPECT_EQ(pool.committed_bytes(), 0U);  // nothing before it is used
    std::vector<uint32_t> runs(pool.num_runs());
    ASSERT_TRUE(pool.Allocate(runs).ok());
    EXPECT_LE(pool.committed_bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.data(0)) % (2 << 20), 0U);
    for (uint32_t frame = 0; frame < pool.num_frames(); ++frame) {
      std::memset(pool.data(frame), static_cast<int>(frame & 0xFF), pool.stride_bytes());
    }
    for (uint32_t frame = 0; frame < pool.num_frames(); ++frame) {
      ASSERT_EQ(pool.data(frame)[0], frame & 0xFF);
      ASSERT_EQ(pool.data(frame)[pool.stride_bytes() - 1], frame & 0xFF);
    }
    std::vector<uint32_t> one(1);
    EXPECT_EQ(pool.Allocate(one).code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(FramePoolTest, RunsAreHandedOutOnceAndLowestFirst) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(1)));
  FramePool pool = MakePool(uint64_t{200} * kRunFrames * 64, 64);
  std::vector<uint32_t> owned;
  for (uint32_t step = 0; step < 3000; ++step) {
    if (rng() % 2 == 0) {
      std::vector<uint32_t> runs(rng() % 20);
      const bool fits = owned.size() + runs.size() <= 200;
      ASSERT_EQ(pool.Allocate(runs).ok(), fits);
      if (fits) {
        owned.insert(owned.end(), runs.begin(), runs.end());
        ASSERT_TRUE(std::is_sorted(runs.begin(), runs.end()));
        const std::set<uint32_t> distinct(owned.begin(), owned.end());
        ASSERT_EQ(distinct.size(), owned.size());
        for (uint32_t run = 0; !runs.empty() && run < runs.back(); ++run) {
          ASSERT_TRUE(distinct.contains(run)) << "a lower run was free";
        }
      }
    } else if (!owned.empty()) {
      std::swap(owned[rng() % owned.size()], owned.back());
      pool.Free({&owned.back(), 1});
      owned.pop_back();
    }
    ASSERT_EQ(pool.num_free_runs(), 200 - owned.size());
    ASSERT_TRUE(pool.CheckIntegrity().ok());
  }
}

TEST(FramePoolTest, WordTellsPageAndState) {
  FramePool pool = MakePool(uint64_t{1} << 20, 4096);
  FrameWord& word = pool.word(3);
  word.Load(4'000'000);
  EXPECT_EQ(word.page(), 4'000'000U);
  EXPECT_EQ(word.state(), FrameState::kLoading);
  word.Publish();
  EXPECT_EQ(word.page(), 4'000'000U);
  EXPECT_EQ(word.state(), FrameState::kResident);
  word.Free();
  EXPECT_EQ(word.state(), FrameState::kFree);
  word.Fill(FrameWord::kMaxPages - 1);
  EXPECT_EQ(word.page(), FrameWord::kMaxPages - 1);
  EXPECT_EQ(word.state(), FrameState::kResident);
}

TEST(FramePoolTest, MisusedFrameOfAFreeRunIsFound) {
  FramePool pool = MakePool(uint64_t{1} << 20, 4096);
  ASSERT_TRUE(pool.CheckIntegrity().ok());
  pool.stamps()[17] = 5;
  EXPECT_EQ(pool.CheckIntegrity().code(), absl::StatusCode::kInternal);
  pool.stamps()[17] = 0;
  pool.word(20).Load(1);
  EXPECT_EQ(pool.CheckIntegrity().code(), absl::StatusCode::kInternal);
}

TEST(FramePoolTest, RefusesSizesOutOfRange) {
  EXPECT_EQ(FramePool::Create(1 << 20, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FramePool::Create(1 << 20, (1 << 20) + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FramePool::Create(8 * 4096 - 1, 4096).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace spindle::kv
