// The two-level directory.
#include "kv/fast/page_directory.h"

#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "support/random_seed.h"
#include "unit/kv_fast/directory_traffic.h"

namespace spindle::kv {
namespace {

class PageDirectoryTest : public testing::Test {
 protected:
  explicit PageDirectoryTest(uint64_t bytes = uint64_t{16} << 20)
      : slab_(MetadataSlab::Create(bytes).value()), leaves_(*slab_) {}

  ~PageDirectoryTest() override {
    directory_.Clear(leaves_);
    leaves_.Flush();
    EXPECT_EQ(slab_->item_bytes(), 0U);
    EXPECT_TRUE(slab_->CheckIntegrity().ok());
  }

  [[nodiscard]] uint32_t Lookup(uint32_t page) const { return directory_.Lookup(*slab_, page); }

  // The leaf of a region is the smallest that holds its pages.
  void ExpectTight(uint32_t region) {
    const PageDirectory::Entry& entry = directory_.entry(*slab_, region);
    const auto count = static_cast<uint32_t>(std::popcount(entry.bitmap));
    ASSERT_EQ(entry.capacity, count == 0 ? 0 : std::max(2U, std::bit_ceil(count)));
  }

  std::unique_ptr<MetadataSlab> slab_;
  LeafCache leaves_;
  PageDirectory directory_;
};

TEST_F(PageDirectoryTest, EqualsMapUnderRandomTraffic) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(1)));
  RunAgainstMap(*slab_, leaves_, &directory_, 200'000, rng);
}

// That of the entry, and that of the slot, whose two bytes lie at an even address. Directories of
// up to 16,384 pages have no root to go through.
TEST_F(PageDirectoryTest, ALookUpReadsAtMostTwoCacheLines) {
  const auto line_of = [](const void* address) {
    return reinterpret_cast<uintptr_t>(address) / 64;
  };
  std::vector<PageDirectory> directories(SlabArray<PageDirectory::Entry>::kPerPiece);
  ASSERT_EQ(directories.size() * kRegionPages, 16384U);
  for (uint32_t i = 0; i < directories.size(); ++i) {
    ASSERT_TRUE(directories[i].Grow(*slab_, (i + 1) * kRegionPages));
    for (uint32_t page = i % 5; page < directories[i].num_pages(); page += 1 + i % 9) {
      ASSERT_TRUE(directories[i].Insert(leaves_, page, page));
    }
  }
  for (PageDirectory& directory : directories) {
    for (uint32_t region = 0; region * kRegionPages < directory.num_pages(); ++region) {
      const PageDirectory::Entry& entry = directory.entry(*slab_, region);
      const auto* const bytes = reinterpret_cast<const uint8_t*>(&entry);
      ASSERT_EQ(line_of(bytes), line_of(bytes + sizeof(entry) - 1));
    }
    directory.Clear(leaves_);
  }
}

TEST_F(PageDirectoryTest, GrowsAcrossChunksWithoutMovingPages) {
  uint32_t pages = 1;
  uint32_t inserted = 0;
  while (pages < 100000) {  // 6 chunks of 256 entries
    ASSERT_TRUE(directory_.Grow(*slab_, pages));
    ASSERT_GE(directory_.num_pages(), pages);
    for (; inserted < pages; inserted += 37) {
      ASSERT_TRUE(directory_.Insert(leaves_, inserted, inserted & 0xFFFF));
    }
    pages += 1 + pages / 5;
  }
  for (uint32_t page = 0; page < inserted; ++page) {
    ASSERT_EQ(Lookup(page), page % 37 == 0 ? page & 0xFFFF : kNoSlot);
  }
  EXPECT_EQ(Lookup(directory_.num_pages()), kNoSlot);
  EXPECT_EQ(Lookup(~uint32_t{0}), kNoSlot);
  EXPECT_FALSE(directory_.Insert(leaves_, directory_.num_pages(), 1));
}

TEST_F(PageDirectoryTest, LeavesFollowTheNumberOfPages) {
  ASSERT_TRUE(directory_.Grow(*slab_, 64));
  for (uint32_t page = 0; page < 64; ++page) {
    ASSERT_TRUE(directory_.Insert(leaves_, 63 - page, page));
    ExpectTight(0);
  }
  EXPECT_EQ(directory_.leaf_bytes(*slab_), 128U);
  for (uint32_t page = 0; page < 64; ++page) {
    ASSERT_EQ(directory_.Remove(leaves_, page), 63 - page);
    ExpectTight(0);
  }
  EXPECT_EQ(directory_.leaf_bytes(*slab_), 0U);
}

// Bytes of leaves per resident page for pages at a fixed distance.
TEST_F(PageDirectoryTest, ScatteredPagesCostAtMostFourBytes) {
  for (const uint32_t distance : {1U, 2U, 3U, 7U, 11U, 13U, 32U, 64U}) {
    PageDirectory directory;
    ASSERT_TRUE(directory.Grow(*slab_, 64 * 512));
    uint32_t count = 0;
    for (uint32_t page = 0; page < 64 * 512; page += distance, ++count) {
      ASSERT_TRUE(directory.Insert(leaves_, page, page));
    }
    EXPECT_LE(directory.leaf_bytes(*slab_), 4 * count) << distance;
    directory.Clear(leaves_);
  }
}

TEST_F(PageDirectoryTest, GenerationChangesWithEveryChange) {
  ASSERT_TRUE(directory_.Grow(*slab_, 128));
  uint16_t last = directory_.entry(*slab_, 1).generation;
  const uint16_t other = directory_.entry(*slab_, 0).generation;
  const auto changed = [&] {
    const uint16_t before = std::exchange(last, directory_.entry(*slab_, 1).generation);
    return before != last;
  };
  ASSERT_TRUE(directory_.Insert(leaves_, 70, 1));
  EXPECT_TRUE(changed());
  directory_.Replace(*slab_, 70, 2);
  EXPECT_TRUE(changed());
  for (uint32_t page = 71; page < 76; ++page) {
    ASSERT_TRUE(directory_.Insert(leaves_, page, page));
    EXPECT_TRUE(changed());
  }
  directory_.Replace(*slab_, 70, 3);
  EXPECT_TRUE(changed());
  directory_.Remove(leaves_, 73);
  EXPECT_TRUE(changed());
  EXPECT_EQ(Lookup(70), 3U);
  EXPECT_FALSE(changed());
  EXPECT_EQ(directory_.entry(*slab_, 0).generation, other);
}

class FullSlabTest : public PageDirectoryTest {
 protected:
  FullSlabTest() : PageDirectoryTest(2 * kChunkBytes) {}
};

TEST_F(FullSlabTest, InsertionFailsCleanlyAndRemovalNeverDoes) {
  // A chunk for 256 entries, and one for leaves of a single size.
  ASSERT_TRUE(directory_.Grow(*slab_, 256 * kRegionPages));
  EXPECT_FALSE(directory_.Grow(*slab_, 257 * kRegionPages));
  std::map<uint32_t, uint32_t> model;
  uint32_t num_refused = 0;
  std::mt19937 rng(7);
  for (uint32_t i = 0; i < 20000; ++i) {
    const auto page = static_cast<uint32_t>(rng() % (256 * kRegionPages));
    if (const auto found = model.find(page); found != model.end()) {
      ASSERT_EQ(directory_.Remove(leaves_, page), found->second);
      model.erase(found);
    } else if (directory_.Insert(leaves_, page, i & 0xFFFF)) {
      model[page] = i & 0xFFFF;
    } else {
      ++num_refused;
      ASSERT_EQ(Lookup(page), kNoSlot);
    }
  }
  EXPECT_GT(num_refused, 1000U);
  EXPECT_GT(model.size(), 512U);  // two per region need no leaf
  for (const auto& [page, slot] : model) {
    ASSERT_EQ(Lookup(page), slot);
  }
}

}  // namespace
}  // namespace spindle::kv
