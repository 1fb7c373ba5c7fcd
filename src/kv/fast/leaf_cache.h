// A worker's stock of leaves, so that pages come and go during a layer without a lock: the slab's
// mutex is taken once per 16 leaves of a size. Leaves hold 4, 8, 16, 32 or 64 slots of 2 bytes.
// Thread-safety: one worker at a time. Borrows the slab; leaves in stock are returned by Flush or
// at destruction.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "kv/fast/metadata_slab.h"

namespace spindle::kv {

inline constexpr uint32_t kNumLeafSizes = 5;
inline constexpr uint32_t kMinLeafSlots = 4;

class LeafCache {
 public:
  explicit LeafCache(MetadataSlab& slab) : slab_(slab) {}

  ~LeafCache() { Flush(); }

  LeafCache(const LeafCache&) = delete;
  LeafCache& operator=(const LeafCache&) = delete;

  // A leaf of `slots` (a size from the list above), or kNoItem when the slab is full.
  [[nodiscard]] uint32_t Allocate(uint32_t slots) {
    Stock& stock = stocks_[SizeOf(slots)];
    if (stock.count == 0) {
      stock.count = slab_.AllocateMany(slots / kSlotsPerUnit, kBatch, stock.items.data());
      if (stock.count == 0) {
        return kNoItem;
      }
    }
    return stock.items[--stock.count];
  }

  void Free(uint32_t item, uint32_t slots) {
    Stock& stock = stocks_[SizeOf(slots)];
    if (stock.count == stock.items.size()) {
      stock.count -= kBatch;
      slab_.FreeMany(stock.items.data() + stock.count, kBatch);
    }
    stock.items[stock.count++] = item;
  }

  void Flush() {
    for (Stock& stock : stocks_) {
      slab_.FreeMany(stock.items.data(), stock.count);
      stock.count = 0;
    }
  }

  // Bytes of leaves in stock.
  [[nodiscard]] uint64_t bytes() const {
    uint64_t bytes = 0;
    for (uint32_t size = 0; size < kNumLeafSizes; ++size) {
      bytes += uint64_t{stocks_[size].count} * (kMinLeafSlots << size) * sizeof(uint16_t);
    }
    return bytes;
  }

  [[nodiscard]] MetadataSlab& slab() const { return slab_; }

 private:
  static constexpr uint32_t kBatch = 16;
  static constexpr uint32_t kSlotsPerUnit = kSlabUnitBytes / sizeof(uint16_t);

  struct Stock {
    uint32_t count = 0;
    std::array<uint32_t, 2 * kBatch> items{};
  };

  // Leaf size 0 … 4 of a number of slots.
  static uint32_t SizeOf(uint32_t slots) {
    return static_cast<uint32_t>(std::countr_zero(slots / kMinLeafSlots));
  }

  MetadataSlab& slab_;
  std::array<Stock, kNumLeafSizes> stocks_;
};

}  // namespace spindle::kv
