// The flat layout that the two-level directory is measured against: tables sized for the longest
// context, with an 8-byte entry per page each, for the page's slot, its host address, its partition
// and the partition's offset. Same operations as PageDirectory, no leaves, no growth. Not used by
// the product. Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/fast/page_directory.h"

namespace spindle::kv {

class FlatPageTable {
 public:
  static constexpr uint32_t kNumTables = 4;
  static constexpr uint32_t kEntryBytes = 8;

  // Bytes of the flat tables of `num_groups` groups with one entry per page.
  [[nodiscard]] static uint64_t TightBytes(uint64_t num_groups, uint64_t max_pages) {
    return num_groups * max_pages * kNumTables * kEntryBytes;
  }

  // Bytes of flat tables for partitions of a single token: 16 bytes of meta-partition and 8 each
  // for the fast page, the host page and the partition's offset.
  [[nodiscard]] static uint64_t WorstBytes(uint64_t num_groups, uint64_t max_tokens) {
    return num_groups * max_tokens * (16 + 8 + 8 + 8);
  }

  explicit FlatPageTable(uint32_t max_pages)
      : max_pages_(max_pages), entries_(uint64_t{max_pages} * kNumTables, kEmpty) {}

  [[nodiscard]] bool Grow(uint32_t num_pages) const { return num_pages <= max_pages_; }

  [[nodiscard]] uint32_t Lookup(uint32_t page) const {
    return page < max_pages_ ? static_cast<uint32_t>(entries_[page]) : kNoSlot;
  }

  [[nodiscard]] bool Insert(uint32_t page, uint32_t slot) {
    if (page >= max_pages_) {
      return false;
    }
    entries_[page] = slot;
    return true;
  }

  uint32_t Remove(uint32_t page) {
    const auto slot = static_cast<uint32_t>(entries_[page]);
    entries_[page] = kEmpty;
    return slot;
  }

  [[nodiscard]] uint64_t allocated_bytes() const { return entries_.size() * kEntryBytes; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  uint32_t max_pages_;
  std::vector<uint64_t> entries_;  // [kNumTables, max_pages]; look-ups read the first table
};

}  // namespace spindle::kv
