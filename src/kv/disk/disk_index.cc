#include "kv/disk/disk_index.h"

#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace spindle::kv::disk {
namespace {

constexpr size_t kFirstBuckets = 1024;

}  // namespace

LogEntry IndexEntry::AsPut() const {
  return {.op = LogEntry::Op::kPut,
          .id = id(),
          .seq = seq,
          .segment = segment,
          .offset_pages = offset_pages,
          .length_pages = length_pages,
          .header_crc = header_crc,
          .last_use = last_use};
}

DiskIndex::DiskIndex() : buckets_(kFirstBuckets, kNoEntry) {}

size_t DiskIndex::BucketOf(const Digest& key, RecordKind kind, uint64_t sub_id) const {
  // The key is a SHA-256 digest; the other fields are spread by an odd multiplier (2^64 / phi).
  uint64_t bits;
  std::memcpy(&bits, key.data(), sizeof(bits));
  bits += (sub_id * 8 + static_cast<uint64_t>(kind)) * 0x9e3779b97f4a7c15;
  return (bits ^ bits >> 32) & (buckets_.size() - 1);
}

EntryIdx DiskIndex::Find(const RecordId& id) const {
  EntryIdx entry = buckets_[BucketOf(id.key, id.kind, id.sub_id)];
  while (entry != kNoEntry) {
    const IndexEntry& found = At(entry);
    if (found.key == id.key && found.kind == id.kind && found.sub_id == id.sub_id) {
      return entry;
    }
    entry = found.bucket_next;
  }
  return kNoEntry;
}

EntryIdx DiskIndex::TakePlace() {
  if (vacant_ != kNoEntry) {
    return std::exchange(vacant_, At(vacant_).bucket_next);
  }
  SPINDLE_CHECK(num_places_ < kNoEntry);
  if (num_places_ % kChunkEntries == 0) {
    chunks_.push_back(std::make_unique<IndexEntry[]>(kChunkEntries));
  }
  return num_places_++;
}

void DiskIndex::Grow() {
  buckets_.assign(buckets_.size() * 2, kNoEntry);
  for (EntryIdx place = 0; place < num_places_; ++place) {
    IndexEntry& entry = At(place);
    if (entry.kind != RecordKind{}) {
      EntryIdx& first = buckets_[BucketOf(entry.key, entry.kind, entry.sub_id)];
      entry.bucket_next = std::exchange(first, place);
    }
  }
}

void DiskIndex::Link(EntryIdx place) {
  IndexEntry& entry = At(place);
  SegmentLive& live = segments_[entry.segment];
  entry.segment_previous = kNoEntry;
  entry.segment_next = live.first;
  if (live.first != kNoEntry) {
    At(live.first).segment_previous = place;
  }
  live.first = place;
  live.bytes += entry.length();
  live.kept_bytes += MustKeep(entry) ? entry.length() : 0;
  ++live.records;
  live.last_use = std::max(live.last_use, entry.last_use);
  live_bytes_ += entry.length();
}

void DiskIndex::Unlink(EntryIdx place) {
  IndexEntry& entry = At(place);
  const auto found = segments_.find(entry.segment);
  SPINDLE_CHECK(found != segments_.end());
  SegmentLive& live = found->second;
  if (entry.segment_next != kNoEntry) {
    At(entry.segment_next).segment_previous = entry.segment_previous;
  }
  if (entry.segment_previous != kNoEntry) {
    At(entry.segment_previous).segment_next = entry.segment_next;
  } else {
    live.first = entry.segment_next;
  }
  live.bytes -= entry.length();
  live.kept_bytes -= MustKeep(entry) ? entry.length() : 0;
  live_bytes_ -= entry.length();
  if (--live.records == 0) {
    segments_.erase(found);
  }
}

EntryIdx DiskIndex::Put(const LogEntry& put, bool durable) {
  EntryIdx place = Find(put.id);
  if (place != kNoEntry) {
    Unlink(place);
  } else {
    if (size_ >= buckets_.size()) {
      Grow();
    }
    place = TakePlace();
    EntryIdx& first = buckets_[BucketOf(put.id.key, put.id.kind, put.id.sub_id)];
    IndexEntry& entry = At(place);
    entry.key = put.id.key;
    entry.kind = put.id.kind;
    entry.sub_id = put.id.sub_id;
    entry.retained = put.id.kind == RecordKind::kStripe && retained_.contains(put.id.key);
    entry.bucket_next = std::exchange(first, place);
    ++size_;
  }
  IndexEntry& entry = At(place);
  entry.seq = put.seq;
  entry.segment = put.segment;
  entry.offset_pages = put.offset_pages;
  entry.length_pages = put.length_pages;
  entry.header_crc = put.header_crc;
  entry.last_use = put.last_use;
  entry.durable = durable;
  use_clock_ = std::max(use_clock_, put.last_use);
  Link(place);
  return place;
}

void DiskIndex::Erase(EntryIdx place) {
  Unlink(place);
  IndexEntry& entry = At(place);
  EntryIdx* link = &buckets_[BucketOf(entry.key, entry.kind, entry.sub_id)];
  while (*link != place) {
    link = &At(*link).bucket_next;
  }
  *link = entry.bucket_next;
  entry.kind = RecordKind{};
  entry.bucket_next = std::exchange(vacant_, place);
  --size_;
}

void DiskIndex::SetRetained(const Digest& stripe_key, bool retained) {
  const EntryIdx place = Find({stripe_key, RecordKind::kStripe, 0});
  if (place != kNoEntry) {
    IndexEntry& entry = At(place);
    entry.retained = retained;
    uint64_t& kept_bytes = segments_.at(entry.segment).kept_bytes;
    kept_bytes = retained ? kept_bytes + entry.length() : kept_bytes - entry.length();
  }
}

void DiskIndex::Retain(const Digest& stripe_key) {
  if (++retained_[stripe_key] == 1) {
    SetRetained(stripe_key, true);
  }
}

bool DiskIndex::Release(const Digest& stripe_key) {
  const auto found = retained_.find(stripe_key);
  SPINDLE_CHECK(found != retained_.end());
  if (--found->second > 0) {
    return false;
  }
  retained_.erase(found);
  SetRetained(stripe_key, false);
  return true;
}

uint64_t DiskIndex::DropSegment(uint32_t segment) {
  uint64_t dropped = 0;
  for (EntryIdx entry = Live(segment).first; entry != kNoEntry; entry = Live(segment).first) {
    Erase(entry);
    ++dropped;
  }
  return dropped;
}

void DiskIndex::Apply(const LogEntry& change) {
  switch (change.op) {
    case LogEntry::Op::kPut:
      Put(change, true);
      return;
    case LogEntry::Op::kErase:
      if (const EntryIdx entry = Find(change.id); entry != kNoEntry) {
        Erase(entry);
      }
      return;
    case LogEntry::Op::kDropSegment:
      DropSegment(change.segment);
      return;
  }
}

void DiskIndex::Touch(EntryIdx place) {
  IndexEntry& entry = At(place);
  entry.last_use = ++use_clock_;
  segments_[entry.segment].last_use = entry.last_use;
}

SegmentLive DiskIndex::Live(uint32_t segment) const {
  const auto found = segments_.find(segment);
  return found == segments_.end() ? SegmentLive{} : found->second;
}

std::vector<uint32_t> DiskIndex::Segments() const {
  std::vector<uint32_t> numbers;
  numbers.reserve(segments_.size());
  for (const auto& [number, live] : segments_) {
    numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

uint64_t DiskIndex::memory_bytes() const {
  // A node of the segment map: links, hash, key and value.
  constexpr uint64_t kMapNodeBytes = 32 + sizeof(SegmentLive);
  constexpr uint64_t kRetainedNodeBytes = 32 + sizeof(Digest) + sizeof(uint32_t);
  return chunks_.size() * kChunkEntries * sizeof(IndexEntry) + chunks_.capacity() * sizeof(Chunk) +
         buckets_.capacity() * sizeof(EntryIdx) + segments_.size() * kMapNodeBytes +
         segments_.bucket_count() * sizeof(void*) + retained_.size() * kRetainedNodeBytes +
         retained_.bucket_count() * sizeof(void*);
}

}  // namespace spindle::kv::disk
