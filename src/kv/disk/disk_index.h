// Where every live record of a store lies: found by id, listed by segment. At most 160 bytes per
// entry, whatever the history of growth (tested). Thread-safety: thread-compatible (the store uses
// it on the engine thread).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kv/disk/disk_format.h"
#include "kv/disk/log_format.h"

namespace spindle::kv::disk {

// Place of an entry in the index; stays the same as long as the entry lives.
using EntryIdx = uint32_t;
inline constexpr EntryIdx kNoEntry = std::numeric_limits<EntryIdx>::max();

struct IndexEntry {
  Digest key{};
  uint64_t sub_id = 0;
  uint64_t seq = 0;
  uint32_t segment = 0;
  uint32_t offset_pages = 0;
  uint32_t length_pages = 0;
  uint32_t header_crc = 0;
  uint32_t last_use = 0;
  RecordKind kind{};      // zero = the place is vacant
  bool durable = false;   // the journal has this place
  bool retained = false;  // somebody was promised that it stays

  // Links of the index.
  EntryIdx bucket_next = kNoEntry;
  EntryIdx segment_next = kNoEntry;
  EntryIdx segment_previous = kNoEntry;

  [[nodiscard]] RecordId id() const { return {key, kind, sub_id}; }

  [[nodiscard]] uint64_t offset() const { return offset_pages * kAlignment; }

  [[nodiscard]] uint64_t length() const { return length_pages * kAlignment; }

  [[nodiscard]] LogEntry AsPut() const;
};

// Cannot be computed again, so the collector copies and never drops it. Small beside stripes.
[[nodiscard]] inline bool MustKeep(RecordKind kind) {
  return kind == RecordKind::kSession || kind == RecordKind::kOpenTail;
}

// The collector copies and never drops it.
[[nodiscard]] inline bool MustKeep(const IndexEntry& entry) {
  return entry.retained || MustKeep(entry.kind);
}

// A digest is as good as random, so any 8 bytes of it choose a bucket.
struct DigestHash {
  [[nodiscard]] size_t operator()(const Digest& digest) const {
    uint64_t bits = 0;
    std::memcpy(&bits, digest.data(), sizeof(bits));
    return bits;
  }
};

// What of a segment is still referred to.
struct SegmentLive {
  EntryIdx first = kNoEntry;
  uint64_t bytes = 0;
  uint64_t kept_bytes = 0;  // of these: records that the collector never drops
  uint64_t records = 0;
  uint32_t last_use = 0;  // of its most recently used entry
};

class DiskIndex {
 public:
  DiskIndex();

  // kNoEntry if absent. Expected cost O(1).
  [[nodiscard]] EntryIdx Find(const RecordId& id) const;

  // REQUIRES: the place is not vacant.
  [[nodiscard]] const IndexEntry& Get(EntryIdx entry) const { return At(entry); }

  // Adds `put.id`, or moves it to the new place. `durable`: what the entry says of itself.
  EntryIdx Put(const LogEntry& put, bool durable);

  // REQUIRES: the place is not vacant.
  void MarkDurable(EntryIdx entry) { At(entry).durable = true; }

  void Erase(EntryIdx entry);

  // The stripe with this key is kept (MustKeep) until Release was called as often, whether it is
  // there already or comes later. Not part of what is on disk.
  void Retain(const Digest& stripe_key);

  // True when nobody retains it any more. REQUIRES: Retain was called more often.
  bool Release(const Digest& stripe_key);

  // Erases all entries of the segment; returns how many.
  uint64_t DropSegment(uint32_t segment);

  // One change of a log.
  void Apply(const LogEntry& change);

  // Marks an entry as the most recently used.
  void Touch(EntryIdx entry);

  // The recency of the most recently used entry.
  [[nodiscard]] uint32_t use_clock() const { return use_clock_; }

  // All zero for a segment without entries.
  [[nodiscard]] SegmentLive Live(uint32_t segment) const;

  // Live segments with entries that the caller may want to check against the files.
  [[nodiscard]] std::vector<uint32_t> Segments() const;

  // Calls `visit(entry index)` for up to `max_places` places from `place` on, skipping vacant ones;
  // returns the place to continue from, or kNoEntry at the end. Entries added behind the cursor
  // between calls are not visited.
  template <typename Visit>
  EntryIdx Scan(EntryIdx place, uint32_t max_places, Visit visit) const {
    const EntryIdx end = static_cast<EntryIdx>(
        std::min<uint64_t>(num_places_, static_cast<uint64_t>(place) + max_places));
    for (; place < end; ++place) {
      if (At(place).kind != RecordKind{}) {
        visit(place);
      }
    }
    return place < num_places_ ? place : kNoEntry;
  }

  [[nodiscard]] uint64_t size() const { return size_; }

  [[nodiscard]] uint64_t live_bytes() const { return live_bytes_; }

  // Stripes that are retained, here or not.
  [[nodiscard]] uint64_t num_retained() const { return retained_.size(); }

  // Heap bytes of the index.
  [[nodiscard]] uint64_t memory_bytes() const;

 private:
  static constexpr uint32_t kChunkEntries = 4096;
  using Chunk = std::unique_ptr<IndexEntry[]>;

  [[nodiscard]] IndexEntry& At(EntryIdx entry) const {
    return chunks_[entry / kChunkEntries][entry % kChunkEntries];
  }

  [[nodiscard]] size_t BucketOf(const Digest& key, RecordKind kind, uint64_t sub_id) const;
  EntryIdx TakePlace();
  void Grow();
  void Link(EntryIdx entry);    // into its segment's list
  void Unlink(EntryIdx entry);  // from its segment's list
  void SetRetained(const Digest& stripe_key, bool retained);

  std::vector<Chunk> chunks_;
  std::vector<EntryIdx> buckets_;  // a power of two
  std::unordered_map<uint32_t, SegmentLive> segments_;
  std::unordered_map<Digest, uint32_t, DigestHash> retained_;  // how often
  EntryIdx vacant_ = kNoEntry;                                 // list through bucket_next
  uint32_t num_places_ = 0;                                    // ever used
  uint64_t size_ = 0;
  uint64_t live_bytes_ = 0;
  uint32_t use_clock_ = 0;
};

}  // namespace spindle::kv::disk
