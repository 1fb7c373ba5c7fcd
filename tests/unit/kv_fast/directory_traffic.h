// Random traffic on a page directory, compared with std::map and with the flat table after every
// operation. Thread-safety: single-threaded tests.
#pragma once

#include <algorithm>
#include <bit>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv/fast/flat_page_table.h"
#include "kv/fast/page_directory.h"

namespace spindle::kv {

// Random traffic that wanders between sparse and dense.
inline void RunAgainstMap(MetadataSlab& slab,
                          LeafCache& leaves,
                          PageDirectory* directory,
                          uint64_t operations,
                          std::mt19937& rng) {
  constexpr uint32_t kPages = 20000;  // several pieces of the directory
  std::map<uint32_t, uint32_t> model;
  FlatPageTable flat(kPages);
  ASSERT_TRUE(directory->Grow(slab, kPages));
  for (uint64_t i = 0; i < operations; ++i) {
    const auto page = static_cast<uint32_t>(rng() % kPages);
    const auto found = model.find(page);
    const uint32_t expected = found == model.end() ? kNoSlot : found->second;
    ASSERT_EQ(directory->Lookup(slab, page), expected);
    ASSERT_EQ(flat.Lookup(page), expected);
    const uint32_t share = 20 + static_cast<uint32_t>(i / 50000 % 4) * 20;  // of pages resident
    const bool inserts = model.size() * 100 < uint64_t{share} * kPages;
    if (expected == kNoSlot && inserts) {
      const auto slot = static_cast<uint32_t>(rng() % (PageDirectory::kMaxSlot + 1));
      ASSERT_TRUE(directory->Insert(leaves, page, slot));
      ASSERT_TRUE(flat.Insert(page, slot));
      model[page] = slot;
    } else if (expected != kNoSlot && !inserts) {
      ASSERT_EQ(directory->Remove(leaves, page), expected);
      ASSERT_EQ(flat.Remove(page), expected);
      model.erase(found);
    } else if (expected != kNoSlot) {
      const auto slot = static_cast<uint32_t>(rng() % (PageDirectory::kMaxSlot + 1));
      directory->Replace(slab, page, slot);
      ASSERT_TRUE(flat.Insert(page, slot));
      found->second = slot;
    }
    // Bitmap and leaf of the region agree with the map.
    const uint32_t region = page / kRegionPages;
    const PageDirectory::Entry& entry = directory->entry(slab, region);
    const auto begin = model.lower_bound(region * kRegionPages);
    uint64_t bitmap = 0;
    for (auto it = begin; it != model.end() && it->first / kRegionPages == region; ++it) {
      bitmap |= uint64_t{1} << (it->first % kRegionPages);
    }
    ASSERT_EQ(entry.bitmap, bitmap);
    const auto count = static_cast<uint32_t>(std::popcount(bitmap));
    ASSERT_EQ(entry.capacity, count == 0 ? 0 : std::max(2U, std::bit_ceil(count)));
  }
  std::vector<std::pair<uint32_t, uint32_t>> all;
  directory->ForEach(slab, [&](uint32_t page, uint32_t slot) { all.emplace_back(page, slot); });
  EXPECT_EQ(all, (std::vector<std::pair<uint32_t, uint32_t>>(model.begin(), model.end())));
}

}  // namespace spindle::kv
