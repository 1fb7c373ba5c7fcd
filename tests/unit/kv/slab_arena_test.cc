// Memory that is committed slab by slab.
#include "kv/slab_arena.h"

#include <cstdint>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace spindle::kv {
namespace {

constexpr size_t kBytes = 3 * kSlabBytes + 4096;

TEST(SlabArenaTest, CommitsWholeSlabsUpToTheReservation) {
  absl::StatusOr<SlabArena> arena = SlabArena::Reserve(kBytes);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->committed_bytes(), 0U);
  ASSERT_TRUE(arena->Commit(1).ok());
  EXPECT_EQ(arena->committed_bytes(), kSlabBytes);
  arena->data()[kSlabBytes - 1] = 7;
  ASSERT_TRUE(arena->Commit(2).ok());  // there already
  EXPECT_EQ(arena->committed_bytes(), kSlabBytes);
  ASSERT_TRUE(arena->Commit(kBytes).ok());
  EXPECT_EQ(arena->committed_bytes(), kBytes);
  EXPECT_EQ(arena->data()[kSlabBytes - 1], 7);
  arena->data()[kBytes - 1] = 8;
}

TEST(SlabArenaTest, MovesWithItsMemory) {
  absl::StatusOr<SlabArena> first = SlabArena::Reserve(kBytes);
  absl::StatusOr<SlabArena> second = SlabArena::Reserve(kSlabBytes);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(first->Commit(1).ok());
  first->data()[0] = 9;
  *second = *std::move(first);
  EXPECT_EQ(second->data()[0], 9);
  EXPECT_EQ(second->committed_bytes(), kSlabBytes);
  EXPECT_TRUE(second->Commit(kBytes).ok());
  const SlabArena third = *std::move(second);
  EXPECT_EQ(third.data()[0], 9);
}

TEST(SlabArenaTest, AddressSpaceThatIsNotThereIsRefusedWithItsSize) {
  const absl::StatusOr<SlabArena> arena = SlabArena::Reserve(size_t{1} << 60);
  ASSERT_TRUE(absl::IsResourceExhausted(arena.status()));
  EXPECT_NE(arena.status().message().find(std::to_string(size_t{1} << 60)), std::string::npos);
}

TEST(SlabArenaTest, MemoryThatTheSystemRefusesIsNotCounted) {
  absl::StatusOr<SlabArena> arena = SlabArena::Reserve(kBytes);
  ASSERT_TRUE(arena.ok()) << arena.status();
  ASSERT_TRUE(arena->Commit(1).ok());
  // A hole: the system cannot make it accessible.
  ASSERT_EQ(munmap(arena->data() + kSlabBytes, kSlabBytes), 0);
  const absl::Status status = arena->Commit(2 * kSlabBytes);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find(std::to_string(kSlabBytes)), std::string::npos);
  EXPECT_EQ(arena->committed_bytes(), kSlabBytes);
}

}  // namespace
}  // namespace spindle::kv
