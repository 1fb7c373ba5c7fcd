// Blobs of segments: found again, taken from stripes that are gone, evicted rather than grown.
#include "sparse/segment_index_store.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace spindle::sparse {
namespace {

constexpr kv::KvGeometry kGeometry{2, 3, 64, DType::kBF16};
constexpr uint32_t kHeadBytes = 1024;

class SegmentIndexStoreTest : public ::testing::Test {
 protected:
  // A store of 64 stripes: four segments side by side.
  SegmentIndexStoreTest()
      : store_(SegmentIndexStore::Create(kGeometry, 64, kHeadBytes).value()), generations_(64, 1) {}

  SegmentIndexStore::Found Find(uint32_t slot) { return store_.Find(slot, generations_).value(); }

  SegmentIndexStore store_;
  std::vector<uint32_t> generations_;
};

TEST_F(SegmentIndexStoreTest, ASegmentIsBuiltOnce) {
  store_.BeginStep();
  const SegmentIndexStore::Found first = Find(15);
  EXPECT_FALSE(first.is_built);
  EXPECT_TRUE(Find(15).is_built);  // another sequence of the step
  const SegmentIndexStore::Found other = Find(31);
  EXPECT_FALSE(other.is_built);
  EXPECT_NE(other.blob, first.blob);
  store_.BeginStep();
  EXPECT_TRUE(Find(15).is_built);
  EXPECT_EQ(Find(15).blob, first.blob);
  EXPECT_EQ(store_.Data(1) - store_.Data(0), ptrdiff_t{2} * 3 * kHeadBytes);
  EXPECT_EQ(store_.Offset(1, 2), uint64_t{5} * kHeadBytes);
}

TEST_F(SegmentIndexStoreTest, OtherContentOfASlotIsAnotherSegment) {
  store_.BeginStep();
  const uint32_t blob = Find(15).blob;
  ++generations_[15];
  EXPECT_FALSE(Find(15).is_built);
  EXPECT_EQ(Find(15).blob, blob);
}

TEST_F(SegmentIndexStoreTest, BlobsOfStripesThatAreGoneAreTakenFirst) {
  store_.BeginStep();
  const uint32_t blob = Find(15).blob;
  Find(31);
  ++generations_[15];
  store_.BeginStep();
  EXPECT_EQ(Find(47).blob, blob);
}

TEST_F(SegmentIndexStoreTest, AFailedStepLeavesNothing) {
  store_.BeginStep();
  store_.Forget(Find(15).blob);
  EXPECT_FALSE(Find(15).is_built);
}

// Sequences that share all but their last stripes have more segments than fit side by side.
TEST_F(SegmentIndexStoreTest, EvictsWhatTheStepDoesNotNeedBeforeItGrows) {
  store_.BeginStep();
  for (uint32_t slot = 0; slot < 4; ++slot) {
    Find(slot);
  }
  store_.BeginStep();
  Find(0);
  Find(2);
  Find(3);
  const SegmentIndexStore::Found fifth = Find(4);
  EXPECT_FALSE(fifth.is_built);
  EXPECT_TRUE(Find(0).is_built);
  EXPECT_FALSE(Find(1).is_built);  // made room; all others are needed, so now the store grows
  std::set<uint32_t> blobs;
  for (uint32_t slot = 0; slot < 5; ++slot) {
    blobs.insert(Find(slot).blob);
  }
  EXPECT_EQ(blobs.size(), 5U);
}

TEST_F(SegmentIndexStoreTest, HasRoomForASegmentPerStripe) {
  store_.BeginStep();
  // 64 / 16 side by side, and as many branches as there are stripes: never more than stripes.
  for (uint32_t slot = 0; slot < 64; ++slot) {
    EXPECT_TRUE(store_.Find(slot, generations_).ok());
  }
}

}  // namespace
}  // namespace spindle::sparse
