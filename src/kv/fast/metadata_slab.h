// Memory of page directories, leaves and run tables: 4 KiB chunks, each cut into items of one size.
// Small groups share chunks, and a chunk whose items are all free serves another size. Bounded at
// creation; a full slab is an answer, not an error. Items are named by their offset in units of
// 8 bytes, so that tables hold 4-byte references.
//
// Thread-safety: Allocate and Free are thread-safe (one mutex); the memory of an item belongs to
// its owner. Workers go through a LeafCache, which takes the mutex once per 16 items.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "platform/memory.h"

namespace spindle::kv {

inline constexpr uint32_t kNoItem = ~uint32_t{0};
inline constexpr uint32_t kSlabUnitBytes = 8;
inline constexpr uint32_t kChunkBytes = 4096;
inline constexpr uint32_t kChunkUnits = kChunkBytes / kSlabUnitBytes;

class MetadataSlab {
 public:
  // Takes addresses; memory is used as chunks are. ERRORS: kInvalidArgument (max_bytes outside
  // 4 KiB … 16 GiB), kResourceExhausted (address space).
  static absl::StatusOr<std::unique_ptr<MetadataSlab>> Create(uint64_t max_bytes);
  MetadataSlab(const MetadataSlab&) = delete;
  MetadataSlab& operator=(const MetadataSlab&) = delete;

  // An item of at least `units`, with undefined content; kNoItem when the slab is full.
  // REQUIRES: 1 ≤ units ≤ kChunkUnits.
  [[nodiscard]] uint32_t Allocate(uint32_t units) SPINDLE_EXCLUDES(mutex_);

  // Up to `count` items of one size; returns how many there were.
  [[nodiscard]] uint32_t AllocateMany(uint32_t units, uint32_t count, uint32_t* items)
      SPINDLE_EXCLUDES(mutex_);

  // REQUIRES: allocated.
  void FreeMany(const uint32_t* items, uint32_t count) SPINDLE_EXCLUDES(mutex_);

  void Free(uint32_t item) { FreeMany(&item, 1); }

  template <typename T>
  [[nodiscard]] T* At(uint32_t item) const {
    return reinterpret_cast<T*>(data_ + size_t{item} * kSlabUnitBytes);
  }

  // Units that an item of `units` really takes. REQUIRES: as Allocate.
  [[nodiscard]] static uint32_t ItemUnits(uint32_t units);

  // Bytes of chunks in use, and 16 bytes of bookkeeping for every chunk that ever was.
  [[nodiscard]] uint64_t allocated_bytes() const SPINDLE_EXCLUDES(mutex_);

  // Bytes of items handed out, in the sizes they really take.
  [[nodiscard]] uint64_t item_bytes() const SPINDLE_EXCLUDES(mutex_);

  // kInternal naming the first broken invariant. O(chunks + free items).
  [[nodiscard]] absl::Status CheckIntegrity() const SPINDLE_EXCLUDES(mutex_);

 private:
  static constexpr uint32_t kNumClasses = 26;

  struct Chunk {
    uint32_t next;  // in the list of its class, or of free chunks
    uint32_t previous;
    uint16_t first_free;  // unit in the chunk of the first item that was used before
    uint16_t fresh;       // units from here on were never handed out
    uint16_t num_used;    // items
    uint16_t size_class;
  };

  static_assert(sizeof(Chunk) == 16);

  MetadataSlab(platform::AlignedBuffer memory, platform::AlignedBuffer chunks);

  [[nodiscard]] uint32_t TakeItem(uint32_t size_class) SPINDLE_REQUIRES(mutex_);
  [[nodiscard]] uint32_t TakeChunk(uint32_t size_class) SPINDLE_REQUIRES(mutex_);
  void FreeItem(uint32_t item) SPINDLE_REQUIRES(mutex_);
  void Link(uint32_t chunk) SPINDLE_REQUIRES(mutex_);
  void Unlink(uint32_t chunk) SPINDLE_REQUIRES(mutex_);
  [[nodiscard]] absl::Status CheckChunk(uint32_t chunk) const SPINDLE_REQUIRES(mutex_);

  const platform::AlignedBuffer memory_;
  const platform::AlignedBuffer chunk_memory_;
  uint8_t* const data_;
  const uint32_t num_chunks_;

  mutable Mutex mutex_;
  Chunk* const chunks_ SPINDLE_PT_GUARDED_BY(mutex_);
  std::array<uint32_t, kNumClasses> with_room_ SPINDLE_GUARDED_BY(mutex_);  // lists of chunks
  uint32_t first_free_chunk_ SPINDLE_GUARDED_BY(mutex_) = kNoItem;
  uint32_t num_touched_chunks_ SPINDLE_GUARDED_BY(mutex_) = 0;  // chunks that ever were in use
  uint32_t num_used_chunks_ SPINDLE_GUARDED_BY(mutex_) = 0;
  uint64_t item_units_ SPINDLE_GUARDED_BY(mutex_) = 0;
};

}  // namespace spindle::kv
