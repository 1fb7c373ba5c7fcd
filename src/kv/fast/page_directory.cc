#include "kv/fast/page_directory.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"

namespace spindle::kv {

bool PageDirectory::Grow(MetadataSlab& slab, uint32_t num_pages) {
  const uint32_t regions = num_pages / kRegionPages + (num_pages % kRegionPages != 0 ? 1 : 0);
  return regions <= entries_.size() || entries_.Resize(slab, regions);
}

bool PageDirectory::Insert(LeafCache& leaves, uint32_t page, uint32_t slot) {
  const uint32_t region = page / kRegionPages;
  if (region >= entries_.size()) {
    return false;
  }
  Entry& entry = entries_.At(leaves.slab(), region);
  const uint64_t bit = uint64_t{1} << (page % kRegionPages);
  SPINDLE_DCHECK((entry.bitmap & bit) == 0 && slot <= kMaxSlot);
  const auto count = static_cast<uint32_t>(std::popcount(entry.bitmap));
  const auto rank = static_cast<uint32_t>(std::popcount(entry.bitmap & (bit - 1)));
  uint16_t slots[kRegionPages];
  Load(leaves.slab(), entry, count, slots);
  std::memmove(slots + rank + 1, slots + rank, (count - rank) * sizeof(uint16_t));
  slots[rank] = static_cast<uint16_t>(slot);
  if (!Store(leaves, &entry, slots, count + 1)) {
    return false;
  }
  entry.bitmap |= bit;
  return true;
}

uint32_t PageDirectory::Remove(LeafCache& leaves, uint32_t page) {
  Entry& entry = entries_.At(leaves.slab(), page / kRegionPages);
  const uint64_t bit = uint64_t{1} << (page % kRegionPages);
  SPINDLE_DCHECK((entry.bitmap & bit) != 0);
  const auto count = static_cast<uint32_t>(std::popcount(entry.bitmap));
  const auto rank = static_cast<uint32_t>(std::popcount(entry.bitmap & (bit - 1)));
  uint16_t slots[kRegionPages];
  Load(leaves.slab(), entry, count, slots);
  const uint32_t slot = slots[rank];
  std::memmove(slots + rank, slots + rank + 1, (count - rank - 1) * sizeof(uint16_t));
  entry.bitmap &= ~bit;
  SPINDLE_CHECK(Store(leaves, &entry, slots, count - 1));
  return slot;
}

void PageDirectory::Replace(const MetadataSlab& slab, uint32_t page, uint32_t slot) {
  Entry& entry = entries_.At(slab, page / kRegionPages);
  const uint64_t bit = uint64_t{1} << (page % kRegionPages);
  SPINDLE_DCHECK((entry.bitmap & bit) != 0 && slot <= kMaxSlot);
  const auto rank = static_cast<uint32_t>(std::popcount(entry.bitmap & (bit - 1)));
  if (entry.capacity == kInlineSlots) {
    const uint32_t shift = 16 * rank;
    entry.leaf = (entry.leaf & ~(kMaxSlot << shift)) | (slot << shift);
  } else {
    slab.At<uint16_t>(entry.leaf)[rank] = static_cast<uint16_t>(slot);
  }
  ++entry.generation;
}

void PageDirectory::Clear(LeafCache& leaves) {
  for (uint32_t region = 0; region < entries_.size(); ++region) {
    const Entry& entry = entries_.At(leaves.slab(), region);
    if (entry.capacity > kInlineSlots) {
      leaves.Free(entry.leaf, entry.capacity);
    }
  }
  entries_.Clear(leaves.slab());
}

uint64_t PageDirectory::leaf_bytes(const MetadataSlab& slab) const {
  uint64_t bytes = 0;
  for (uint32_t region = 0; region < entries_.size(); ++region) {
    const Entry& entry = entries_.At(slab, region);
    bytes += entry.capacity > kInlineSlots ? entry.capacity * sizeof(uint16_t) : 0;
  }
  return bytes;
}

uint32_t PageDirectory::CapacityFor(uint32_t num_slots) {
  if (num_slots == 0) {
    return 0;
  }
  return std::max(kInlineSlots, std::bit_ceil(num_slots));
}

void PageDirectory::Load(const MetadataSlab& slab,
                         const Entry& entry,
                         uint32_t count,
                         uint16_t* slots) {
  if (entry.capacity == kInlineSlots) {
    slots[0] = static_cast<uint16_t>(entry.leaf & kMaxSlot);
    slots[1] = static_cast<uint16_t>(entry.leaf >> 16);
  } else if (count > 0) {
    std::memcpy(slots, slab.At<uint16_t>(entry.leaf), count * sizeof(uint16_t));
  }
}

bool PageDirectory::Store(LeafCache& leaves, Entry* entry, const uint16_t* slots, uint32_t count) {
  const uint32_t old_leaf = entry->leaf;
  const uint32_t old_capacity = entry->capacity;
  uint32_t capacity = CapacityFor(count);
  if (capacity > kInlineSlots && capacity != old_capacity) {
    const uint32_t leaf = leaves.Allocate(capacity);
    if (leaf != kNoItem) {
      entry->leaf = leaf;
    } else if (old_capacity > capacity) {
      capacity = old_capacity;  // no smaller leaf to be had: the larger one serves as well
    } else {
      return false;
    }
  }
  if (capacity > kInlineSlots) {
    std::memcpy(leaves.slab().At<uint16_t>(entry->leaf), slots, count * sizeof(uint16_t));
  } else {
    entry->leaf = count == 0 ? 0 : slots[0] | (count > 1 ? uint32_t{slots[1]} << 16 : 0);
  }
  if (capacity != old_capacity && old_capacity > kInlineSlots) {
    leaves.Free(old_leaf, old_capacity);
  }
  entry->capacity = static_cast<uint16_t>(capacity);
  ++entry->generation;
  return true;
}

}  // namespace spindle::kv
