// Which pages of a cache group are in the fast tier, and in which of the group's slots: two levels,
// whose size follows what is resident. An entry of 16 bytes per 64 pages holds a bitmap; the slots
// of its resident pages lie packed in bit order in a leaf of 4, 8, 16, 32 or 64 slots, two of them
// in the entry itself. A look-up is a bit test, a population count and a load: two cache lines.
// Leaves take and give back memory as soon as the next size fits.
//
// Slots are numbers of the group (2 bytes), not of the pool (4 bytes), which halves the leaves; the
// group's run table (cache_group.h), a line per 128 frames that all its look-ups share, makes them
// frames.
//
// Thread-safety: thread-compatible; a directory belongs to one worker at a time. Eight bytes; the
// slab is passed to every call, and the owner must Clear it.
#pragma once

#include <bit>
#include <cstdint>

#include "kv/fast/leaf_cache.h"
#include "kv/fast/metadata_slab.h"
#include "kv/fast/slab_array.h"

namespace spindle::kv {

inline constexpr uint32_t kNoSlot = ~uint32_t{0};
inline constexpr uint32_t kRegionPages = 64;

class PageDirectory {
 public:
  static constexpr uint32_t kMaxSlot = 0xFFFF;

  struct Entry {
    uint64_t bitmap;      // bit i: page 64 · region + i is resident
    uint32_t leaf;        // item in the slab; two slots of 16 bits when capacity is 2
    uint16_t capacity;    // slots that fit: 0 (empty), 2, 4, 8, 16, 32, 64
    uint16_t generation;  // changes whenever the content does: a copy elsewhere can be refreshed
  };

  static_assert(sizeof(Entry) == 16);

  // Makes room for pages [0, num_pages); never shrinks. False when the slab is full (unchanged).
  [[nodiscard]] bool Grow(MetadataSlab& slab, uint32_t num_pages);

  // Pages that the directory covers.
  [[nodiscard]] uint32_t num_pages() const { return entries_.size() * kRegionPages; }

  // The slot of a page, or kNoSlot. Any page.
  [[nodiscard]] uint32_t Lookup(const MetadataSlab& slab, uint32_t page) const {
    const uint32_t region = page / kRegionPages;
    if (region >= entries_.size()) {
      return kNoSlot;
    }
    const Entry& entry = entries_.At(slab, region);
    const uint64_t bit = uint64_t{1} << (page % kRegionPages);
    if ((entry.bitmap & bit) == 0) {
      return kNoSlot;
    }
    const auto rank = static_cast<uint32_t>(std::popcount(entry.bitmap & (bit - 1)));
    if (entry.capacity == kInlineSlots) {
      return (entry.leaf >> (16 * rank)) & kMaxSlot;
    }
    return slab.At<uint16_t>(entry.leaf)[rank];
  }

  // False when the directory does not cover the page or no leaf is to be had: nothing changed.
  // REQUIRES: the page is not resident, slot ≤ kMaxSlot.
  [[nodiscard]] bool Insert(LeafCache& leaves, uint32_t page, uint32_t slot);

  // Returns the slot. REQUIRES: resident.
  uint32_t Remove(LeafCache& leaves, uint32_t page);

  // REQUIRES: resident, slot ≤ kMaxSlot.
  void Replace(const MetadataSlab& slab, uint32_t page, uint32_t slot);

  // Forgets all pages and gives back all memory.
  void Clear(LeafCache& leaves);

  // Calls fn(page, slot) for the resident pages, ascending.
  template <typename Fn>
  void ForEach(const MetadataSlab& slab, Fn&& fn) const {
    for (uint32_t region = 0; region < entries_.size(); ++region) {
      const Entry& entry = entries_.At(slab, region);
      for (uint64_t bits = entry.bitmap; bits != 0; bits &= bits - 1) {
        const auto page = region * kRegionPages + static_cast<uint32_t>(std::countr_zero(bits));
        fn(page, Lookup(slab, page));
      }
    }
  }

  // REQUIRES: region < num_pages() / 64.
  [[nodiscard]] const Entry& entry(const MetadataSlab& slab, uint32_t region) const {
    return entries_.At(slab, region);
  }

  [[nodiscard]] uint64_t entry_bytes() const { return entries_.item_bytes(); }

  [[nodiscard]] uint64_t leaf_bytes(const MetadataSlab& slab) const;

 private:
  static constexpr uint32_t kInlineSlots = 2;

  // Smallest capacity for a number of slots.
  static uint32_t CapacityFor(uint32_t num_slots);
  static void Load(const MetadataSlab& slab, const Entry& entry, uint32_t count, uint16_t* slots);
  // Writes slots [0, count) and makes the capacity fit. False (nothing changed) when that needs a
  // leaf and there is none; never when count is not more than the capacity.
  static bool Store(LeafCache& leaves, Entry* entry, const uint16_t* slots, uint32_t count);

  SlabArray<Entry> entries_;
};

}  // namespace spindle::kv
