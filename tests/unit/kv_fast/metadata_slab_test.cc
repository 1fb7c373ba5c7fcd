// The slab of directories and leaves: items do not overlap, chunks change their size class, full is
// an answer.
#include "kv/fast/metadata_slab.h"

#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kv/fast/leaf_cache.h"
#include "kv/fast/slab_array.h"
#include "support/random_seed.h"

namespace spindle::kv {
namespace {

std::unique_ptr<MetadataSlab> MakeSlab(uint64_t bytes) {
  auto slab = MetadataSlab::Create(bytes);
  EXPECT_TRUE(slab.ok()) << slab.status();
  return *std::move(slab);
}

struct Item {
  uint32_t item;
  uint32_t units;
  uint8_t mark;
};

void Fill(const MetadataSlab& slab, const Item& item) {
  std::memset(slab.At<uint8_t>(item.item), item.mark, item.units * kSlabUnitBytes);
}

bool IsIntact(const MetadataSlab& slab, const Item& item) {
  const uint8_t* bytes = slab.At<uint8_t>(item.item);
  for (uint32_t i = 0; i < item.units * kSlabUnitBytes; ++i) {
    if (bytes[i] != item.mark) {
      return false;
    }
  }
  return true;
}

TEST(MetadataSlabTest, ItemsNeverOverlapAndCountsAddUp) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(1)));
  const auto slab = MakeSlab(64 * kChunkBytes);
  std::vector<Item> items;
  uint64_t bytes = 0;
  uint32_t num_full = 0;
  for (uint32_t step = 0; step < 20000; ++step) {
    const bool grows = step / 2000 % 2 == 0;  // phases, so that chunks empty and change class
    if (items.empty() || rng() % 10 < (grows ? 7U : 3U)) {
      const uint32_t units =
          rng() % 8 == 0 ? 1 + static_cast<uint32_t>(rng() % kChunkUnits) : 1U << (rng() % 5);
      const uint32_t item = slab->Allocate(units);
      if (item == kNoItem) {
        ++num_full;
        continue;
      }
      items.push_back({item, units, static_cast<uint8_t>(rng())});
      Fill(*slab, items.back());
      bytes += MetadataSlab::ItemUnits(units) * kSlabUnitBytes;
    } else {
      std::swap(items[rng() % items.size()], items.back());
      ASSERT_TRUE(IsIntact(*slab, items.back()));
      bytes -= MetadataSlab::ItemUnits(items.back().units) * kSlabUnitBytes;
      slab->Free(items.back().item);
      items.pop_back();
    }
    ASSERT_EQ(slab->item_bytes(), bytes);
    if (step % 500 == 0) {
      ASSERT_TRUE(slab->CheckIntegrity().ok()) << slab->CheckIntegrity();
    }
  }
  EXPECT_GT(num_full, 0U);
  for (const Item& item : items) {
    ASSERT_TRUE(IsIntact(*slab, item));
    slab->Free(item.item);
  }
  EXPECT_TRUE(slab->CheckIntegrity().ok());
  EXPECT_EQ(slab->item_bytes(), 0U);
  EXPECT_LE(slab->allocated_bytes(), 64U * 16);  // only what chunks are described by
}

TEST(MetadataSlabTest, SmallItemsShareChunks) {
  const auto slab = MakeSlab(uint64_t{1} << 20);
  for (uint32_t i = 0; i < 4096; ++i) {
    ASSERT_NE(slab->Allocate(2), kNoItem);  // one directory entry
  }
  EXPECT_EQ(slab->allocated_bytes(), 4096U * 16 + 16 * 16);
}

TEST(MetadataSlabTest, SizesWasteLittleOfAChunk) {
  for (uint32_t units = 1; units <= kChunkUnits; ++units) {
    const uint32_t taken = MetadataSlab::ItemUnits(units);
    ASSERT_GE(taken, units);
    // Up to 1 KiB an item takes at most a third more than asked for.
    ASSERT_LE(taken, units <= 128 ? units + units / 3 + 1 : kChunkUnits);
    // Directory entries of 16 bytes do not cross cache lines.
    ASSERT_TRUE(units % 2 != 0 || taken % 2 == 0);
    ASSERT_LE(kChunkUnits % taken, kChunkUnits / 16);
  }
}

TEST(MetadataSlabTest, RefusesSizesOutOfRange) {
  EXPECT_EQ(MetadataSlab::Create(kChunkBytes - 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MetadataSlab::Create((uint64_t{16} << 30) + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SlabArrayTest, KeepsContentAcrossAllSizes) {
  const auto slab = MakeSlab(uint64_t{1} << 20);
  SlabArray<uint32_t> array;
  uint64_t before = 0;
  for (uint32_t size = 1; size < 5000; size += 1 + size / 9) {  // 5 pieces of 1024
    ASSERT_TRUE(array.Resize(*slab, size));
    for (uint32_t i = 0; i < size; ++i) {
      ASSERT_EQ(array.At(*slab, i), i < before ? i + 7 : 0) << size;
      array.At(*slab, i) = i + 7;
    }
    before = size;
    ASSERT_EQ(array.item_bytes(), slab->item_bytes());
  }
  for (uint32_t size = 4500; size > 0; size = size * 2 / 3) {
    ASSERT_TRUE(array.Resize(*slab, size));
    for (uint32_t i = 0; i < size; ++i) {
      ASSERT_EQ(array.At(*slab, i), i + 7);
    }
    ASSERT_EQ(array.item_bytes(), slab->item_bytes());
  }
  array.Clear(*slab);
  EXPECT_EQ(slab->item_bytes(), 0U);
}

TEST(SlabArrayTest, GrowthThatDoesNotFitChangesNothing) {
  const auto slab = MakeSlab(6 * kChunkBytes);
  SlabArray<uint32_t> array;
  ASSERT_TRUE(array.Resize(*slab, 3000));
  array.At(*slab, 2999) = 42;
  const uint64_t bytes = slab->item_bytes();
  EXPECT_FALSE(array.Resize(*slab, 20000));
  EXPECT_EQ(array.size(), 3000U);
  EXPECT_EQ(array.At(*slab, 2999), 42U);
  EXPECT_EQ(slab->item_bytes(), bytes);
  EXPECT_TRUE(slab->CheckIntegrity().ok());
}

TEST(LeafCacheTest, ReturnsItsStock) {
  const auto slab = MakeSlab(8 * kChunkBytes);
  std::vector<uint32_t> leaves;
  LeafCache cache(*slab);
  for (uint32_t i = 0; i < 100; ++i) {
    leaves.push_back(cache.Allocate(4U << (i % kNumLeafSizes)));
    ASSERT_NE(leaves.back(), kNoItem);
  }
  uint64_t in_use = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    in_use += (4U << (i % kNumLeafSizes)) * sizeof(uint16_t);
  }
  EXPECT_EQ(slab->item_bytes(), in_use + cache.bytes());
  for (uint32_t i = 0; i < 100; ++i) {
    cache.Free(leaves[i], 4U << (i % kNumLeafSizes));
  }
  EXPECT_EQ(slab->item_bytes(), cache.bytes());
  cache.Flush();
  EXPECT_EQ(slab->item_bytes(), 0U);
}

TEST(LeafCacheTest, FullSlabGivesWhatIsLeftThenNothing) {
  const auto slab = MakeSlab(kChunkBytes);
  LeafCache cache(*slab);
  uint32_t count = 0;
  while (cache.Allocate(64) != kNoItem) {
    ++count;
  }
  EXPECT_EQ(count, kChunkBytes / 128);
  EXPECT_EQ(cache.Allocate(4), kNoItem);
}

}  // namespace
}  // namespace spindle::kv
