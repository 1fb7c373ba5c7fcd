#include "kv/fast/metadata_slab.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace spindle::kv {
namespace {

// Sizes that leave next to nothing of a chunk unused. Even from 4 units on, so that 16-byte entries
// do not cross a cache line.
constexpr std::array<uint16_t, 26> kClassUnits = {1,  2,  3,  4,   6,   8,   10,  12, 14,
                                                  16, 20, 24, 28,  32,  36,  42,  50, 56,
                                                  64, 72, 84, 102, 128, 170, 256, 512};

constexpr uint16_t kNoUnit = 0xFFFF;
constexpr uint64_t kMaxBytes = uint64_t{16} << 30;

constexpr std::array<uint8_t, kChunkUnits + 1> MakeClassOf() {
  std::array<uint8_t, kChunkUnits + 1> class_of{};
  uint8_t size_class = 0;
  for (uint32_t units = 0; units <= kChunkUnits; ++units) {
    if (units > kClassUnits[size_class]) {
      ++size_class;
    }
    class_of[units] = size_class;
  }
  return class_of;
}

constexpr std::array<uint8_t, kChunkUnits + 1> kClassOf = MakeClassOf();

// The link of a free item, in its first bytes.
uint16_t LoadLink(const uint8_t* item) {
  uint16_t link;
  std::memcpy(&link, item, sizeof(link));
  return link;
}

void StoreLink(uint8_t* item, uint16_t link) {
  std::memcpy(item, &link, sizeof(link));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetadataSlab>> MetadataSlab::Create(uint64_t max_bytes) {
  if (max_bytes < kChunkBytes || max_bytes > kMaxBytes) {
    return absl::InvalidArgumentError("metadata bytes must be in 4 KiB..16 GiB, got " +
                                      std::to_string(max_bytes));
  }
  const uint64_t num_chunks = max_bytes / kChunkBytes;
  SPINDLE_ASSIGN_OR_RETURN(platform::AlignedBuffer memory,
                           platform::AlignedBuffer::Allocate(num_chunks * kChunkBytes));
  SPINDLE_ASSIGN_OR_RETURN(platform::AlignedBuffer chunks,
                           platform::AlignedBuffer::Allocate(num_chunks * sizeof(Chunk)));
  return std::unique_ptr<MetadataSlab>(new MetadataSlab(std::move(memory), std::move(chunks)));
}

MetadataSlab::MetadataSlab(platform::AlignedBuffer memory, platform::AlignedBuffer chunks)
    : memory_(std::move(memory)),
      chunk_memory_(std::move(chunks)),
      data_(memory_.data()),
      num_chunks_(static_cast<uint32_t>(memory_.size() / kChunkBytes)),
      chunks_(reinterpret_cast<Chunk*>(chunk_memory_.data())) {
  static_assert(kClassUnits.size() == kNumClasses);
  with_room_.fill(kNoItem);
}

uint32_t MetadataSlab::ItemUnits(uint32_t units) {
  SPINDLE_DCHECK(units >= 1 && units <= kChunkUnits);
  return kClassUnits[kClassOf[units]];
}

uint32_t MetadataSlab::Allocate(uint32_t units) {
  uint32_t item = kNoItem;
  return AllocateMany(units, 1, &item) == 1 ? item : kNoItem;
}

uint32_t MetadataSlab::AllocateMany(uint32_t units, uint32_t count, uint32_t* items) {
  SPINDLE_DCHECK(units >= 1 && units <= kChunkUnits);
  const MutexLock lock(mutex_);
  uint32_t taken = 0;
  while (taken < count) {
    items[taken] = TakeItem(kClassOf[units]);
    if (items[taken] == kNoItem) {
      break;
    }
    ++taken;
  }
  return taken;
}

void MetadataSlab::FreeMany(const uint32_t* items, uint32_t count) {
  const MutexLock lock(mutex_);
  for (uint32_t i = 0; i < count; ++i) {
    FreeItem(items[i]);
  }
}

uint32_t MetadataSlab::TakeItem(uint32_t size_class) {
  uint32_t index = with_room_[size_class];
  if (index == kNoItem) {
    index = TakeChunk(size_class);
    if (index == kNoItem) {
      return kNoItem;
    }
  }
  Chunk& chunk = chunks_[index];
  const uint16_t units = kClassUnits[size_class];
  uint32_t unit = chunk.first_free;
  if (unit != kNoUnit) {
    chunk.first_free = LoadLink(At<uint8_t>(index * kChunkUnits + unit));
  } else {
    unit = chunk.fresh;
    chunk.fresh = static_cast<uint16_t>(chunk.fresh + units);
  }
  ++chunk.num_used;
  item_units_ += units;
  if (chunk.first_free == kNoUnit && chunk.fresh + units > kChunkUnits) {
    Unlink(index);
  }
  return index * kChunkUnits + unit;
}

uint32_t MetadataSlab::TakeChunk(uint32_t size_class) {
  uint32_t index = first_free_chunk_;
  if (index != kNoItem) {
    first_free_chunk_ = chunks_[index].next;
  } else if (num_touched_chunks_ < num_chunks_) {
    index = num_touched_chunks_++;
  } else {
    return kNoItem;
  }
  chunks_[index] = {.next = kNoItem,
                    .previous = kNoItem,
                    .first_free = kNoUnit,
                    .fresh = 0,
                    .num_used = 0,
                    .size_class = static_cast<uint16_t>(size_class)};
  ++num_used_chunks_;
  Link(index);
  return index;
}

void MetadataSlab::FreeItem(uint32_t item) {
  const uint32_t index = item / kChunkUnits;
  SPINDLE_DCHECK(index < num_touched_chunks_ && chunks_[index].num_used > 0);
  Chunk& chunk = chunks_[index];
  const uint16_t units = kClassUnits[chunk.size_class];
  const bool had_room = chunk.first_free != kNoUnit || chunk.fresh + units <= kChunkUnits;
  StoreLink(At<uint8_t>(item), chunk.first_free);
  chunk.first_free = static_cast<uint16_t>(item % kChunkUnits);
  --chunk.num_used;
  item_units_ -= units;
  if (!had_room) {
    Link(index);
  }
  if (chunk.num_used == 0) {
    Unlink(index);
    chunk.next = first_free_chunk_;
    first_free_chunk_ = index;
    --num_used_chunks_;
  }
}

void MetadataSlab::Link(uint32_t index) {
  Chunk& chunk = chunks_[index];
  chunk.previous = kNoItem;
  chunk.next = with_room_[chunk.size_class];
  if (chunk.next != kNoItem) {
    chunks_[chunk.next].previous = index;
  }
  with_room_[chunk.size_class] = index;
}

void MetadataSlab::Unlink(uint32_t index) {
  const Chunk& chunk = chunks_[index];
  if (chunk.previous != kNoItem) {
    chunks_[chunk.previous].next = chunk.next;
  } else {
    with_room_[chunk.size_class] = chunk.next;
  }
  if (chunk.next != kNoItem) {
    chunks_[chunk.next].previous = chunk.previous;
  }
}

uint64_t MetadataSlab::allocated_bytes() const {
  const MutexLock lock(mutex_);
  return uint64_t{num_used_chunks_} * kChunkBytes + num_touched_chunks_ * sizeof(Chunk);
}

uint64_t MetadataSlab::item_bytes() const {
  const MutexLock lock(mutex_);
  return item_units_ * kSlabUnitBytes;
}

absl::Status MetadataSlab::CheckChunk(uint32_t index) const {
  const Chunk& chunk = chunks_[index];
  const uint32_t units = kClassUnits[chunk.size_class];
  uint32_t num_free = 0;
  for (uint32_t unit = chunk.first_free; unit != kNoUnit; ++num_free) {
    if (unit % units != 0 || unit >= chunk.fresh || num_free > kChunkUnits) {
      return absl::InternalError("free list of metadata chunk " + std::to_string(index) +
                                 " is broken");
    }
    unit = LoadLink(At<uint8_t>(index * kChunkUnits + unit));
  }
  if (chunk.num_used == 0 || chunk.num_used + num_free != chunk.fresh / units) {
    return absl::InternalError("items of metadata chunk " + std::to_string(index) +
                               " do not add up");
  }
  return absl::OkStatus();
}

absl::Status MetadataSlab::CheckIntegrity() const {
  const MutexLock lock(mutex_);
  std::vector<bool> is_free(num_touched_chunks_, false);
  uint64_t num_free = 0;
  for (uint32_t index = first_free_chunk_; index != kNoItem; index = chunks_[index].next) {
    if (is_free[index]) {
      return absl::InternalError("metadata chunk listed as free twice");
    }
    is_free[index] = true;
    ++num_free;
  }
  uint64_t units = 0;
  for (uint32_t index = 0; index < num_touched_chunks_; ++index) {
    if (!is_free[index]) {
      SPINDLE_RETURN_IF_ERROR(CheckChunk(index));
      units += uint64_t{chunks_[index].num_used} * kClassUnits[chunks_[index].size_class];
    }
  }
  if (num_free + num_used_chunks_ != num_touched_chunks_ || units != item_units_) {
    return absl::InternalError("counts of metadata chunks or items do not add up");
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv
