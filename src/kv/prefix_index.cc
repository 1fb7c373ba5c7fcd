#include "kv/prefix_index.h"

#include <bit>
#include <cstring>

#include "base/status_macros.h"

namespace spindle::kv {

PrefixIndex::PrefixIndex(std::span<StripeRecord> records)
    : records_(records), buckets_(std::bit_ceil(records.size()), kNoStripe) {}

size_t PrefixIndex::BucketOf(const Digest& key) const {
  uint64_t bits;
  std::memcpy(&bits, key.data(), sizeof(bits));
  return bits & (buckets_.size() - 1);
}

uint32_t PrefixIndex::Find(const Digest& key) const {
  uint32_t slot = buckets_[BucketOf(key)];
  while (slot != kNoStripe && records_[slot].key != key) {
    slot = records_[slot].bucket_next;
  }
  return slot;
}

void PrefixIndex::Insert(uint32_t slot, uint32_t parent) {
  StripeRecord& record = records_[slot];
  SPINDLE_DCHECK(record.state == StripeState::kSealed && !record.indexed);
  uint32_t& first = buckets_[BucketOf(record.key)];
  record.bucket_next = first;
  first = slot;
  record.indexed = true;
  record.parent = parent;
  record.num_children = 0;
  if (parent != kNoStripe) {
    ++records_[parent].num_children;
  }
  ++num_entries_;
}

void PrefixIndex::Erase(uint32_t slot) {
  StripeRecord& record = records_[slot];
  SPINDLE_CHECK(record.indexed && record.num_children == 0);
  uint32_t* link = &buckets_[BucketOf(record.key)];
  while (*link != slot) {
    link = &records_[*link].bucket_next;
  }
  *link = record.bucket_next;
  record.bucket_next = kNoStripe;
  if (record.parent != kNoStripe) {
    --records_[record.parent].num_children;
  }
  record.parent = kNoStripe;
  record.indexed = false;
  --num_entries_;
}

}  // namespace spindle::kv
