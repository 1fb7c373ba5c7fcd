#include "platform/compute_pool.h"

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "platform/mapped_file.h"
#include "platform/memory.h"

namespace spindle::platform {
namespace {

TEST(ComputePoolTest, CoversEveryUnitExactlyOnce) {
  for (uint32_t threads : {1U, 2U, 3U}) {
    auto pool = ComputePool::Create({.num_threads = threads});
    ASSERT_TRUE(pool.ok());
    for (uint32_t units : {0U, 1U, 7U, 1000U}) {
      for (uint32_t grain : {0U, 1U, 3U, 2000U}) {
        std::vector<int> seen(units, 0);
        const absl::Status status =
            (*pool)->Run(units, grain, [&](kernels::WorkRange range, kernels::Exec* exec) {
              EXPECT_LT(exec->worker, threads);
              for (uint32_t i = range.begin; i < range.end; ++i) {
                ++seen[i];
              }
              return 0;
            });
        EXPECT_TRUE(status.ok());
        EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), static_cast<int>(units));
        for (int count : seen) {
          EXPECT_EQ(count, 1);
        }
      }
    }
  }
}

TEST(ComputePoolTest, PiecesInOrderGoToWhoeverIsFree) {
  auto pool = ComputePool::Create({.num_threads = 2});
  ASSERT_TRUE(pool.ok());
  constexpr uint32_t kPieces = 200;
  std::atomic<uint32_t> next{0};
  std::atomic<bool> is_behind{false};
  const absl::Status status = (*pool)->Run(
      3 * kPieces,
      3,
      [&](kernels::WorkRange range, kernels::Exec*) {
        EXPECT_EQ(range.end - range.begin, 3U);
        // The other worker may have claimed one piece earlier and come here later.
        is_behind = is_behind || range.begin / 3 > next.fetch_add(1) + 1;
        return 0;
      },
      Claiming::kInOrder);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(next, kPieces);
  EXPECT_FALSE(is_behind);
}

TEST(ComputePoolTest, AWorkerHelpsTheOthers) {
  auto pool = ComputePool::Create({.num_threads = 2});
  ASSERT_TRUE(pool.ok());
  // The piece that begins a share waits until all others are done.
  std::atomic<uint32_t> done{0};
  const absl::Status status = (*pool)->Run(64, 1, [&](kernels::WorkRange range, kernels::Exec*) {
    while (range.begin == 0 && done < 63) {
    }
    ++done;
    return 0;
  });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(done, 64U);
}

TEST(ComputePoolTest, ASingleAndTheLastPieceKeepTheirSizes) {
  auto pool = ComputePool::Create({.num_threads = 3});
  ASSERT_TRUE(pool.ok());
  for (const uint32_t units : {1U, 4U, 5U, 9U}) {
    std::atomic<uint32_t> total{0};
    const auto caller = std::this_thread::get_id();
    const absl::Status status =
        (*pool)->Run(units, 4, [&](kernels::WorkRange range, kernels::Exec*) {
          EXPECT_TRUE(units > 4 || std::this_thread::get_id() == caller);
          EXPECT_TRUE(range.end - range.begin == 4 || range.end == units);
          total += range.end - range.begin;
          return 0;
        });
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(total, units);
  }
}

TEST(ComputePoolTest, ReportsAKernelError) {
  auto pool = ComputePool::Create({.num_threads = 2});
  ASSERT_TRUE(pool.ok());
  const absl::Status status =
      (*pool)->Run(10, 1, [](kernels::WorkRange range, kernels::Exec*) -> int {
        return range.begin == 5 ? kernels::kUnsupported : kernels::kOk;
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
}

TEST(ComputePoolTest, ManyShortRunsDoNotHang) {
  auto pool = ComputePool::Create({.num_threads = 2});
  ASSERT_TRUE(pool.ok());
  std::atomic<uint64_t> total{0};
  for (int i = 0; i < 20000; ++i) {
    ASSERT_TRUE((*pool)
                    ->Run(4,
                          1,
                          [&](kernels::WorkRange range, kernels::Exec*) {
                            total += range.end - range.begin;
                            return 0;
                          })
                    .ok());
  }
  EXPECT_EQ(total, 80000U);
}

TEST(ComputePoolTest, WhatIsExpectedMayBeGone) {
  auto pool = ComputePool::Create({.num_threads = 3});
  ASSERT_TRUE(pool.ok());
  std::atomic<uint64_t> total{0};
  for (int i = 0; i < 2000; ++i) {
    // Every other time the workers come to it after it was unmapped; sizes are no multiple of
    // anything.
    auto buffer = AlignedBuffer::Allocate(100003 + static_cast<size_t>(i));
    ASSERT_TRUE(buffer.ok());
    (*pool)->Expect(buffer->data(), buffer->size());
    if (i % 2 == 0) {
      *buffer = AlignedBuffer();
    }
    ASSERT_TRUE((*pool)
                    ->Run(6,
                          1,
                          [&](kernels::WorkRange range, kernels::Exec*) {
                            total += range.end - range.begin;
                            return 0;
                          })
                    .ok());
  }
  (*pool)->Expect(nullptr, 0);
  EXPECT_EQ(total, 12000U);
}

TEST(AlignedBufferTest, IsZeroedAndAligned) {
  auto buffer = AlignedBuffer::Allocate(3 << 20);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % (2 << 20), 0U);
  for (uint8_t b : buffer->As<uint8_t>()) {
    ASSERT_EQ(b, 0);
  }
}

TEST(MappedFileTest, NamesTheFileInErrors) {
  const auto file = MappedFile::Open("/nonexistent/model.gguf");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(file.status().message().find("/nonexistent/model.gguf"), std::string::npos);
}

}  // namespace
}  // namespace spindle::platform
