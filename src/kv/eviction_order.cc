#include "kv/eviction_order.h"

#include "base/status_macros.h"

namespace spindle::kv {

EvictionOrder::EvictionOrder(std::span<StripeRecord> records)
    : records_(records), max_protected_(records.size() * 4 / 5) {}

void EvictionOrder::Append(uint32_t slot, EvictionSegment segment) {
  StripeRecord& record = records_[slot];
  List& list = ListOf(segment);
  record.segment = segment;
  record.older = list.newest;
  record.newer = kNoStripe;
  (list.newest == kNoStripe ? list.oldest : records_[list.newest].newer) = slot;
  list.newest = slot;
  ++list.size;
}

void EvictionOrder::Add(uint32_t slot) {
  SPINDLE_DCHECK(records_[slot].segment == EvictionSegment::kNone);
  if (records_[slot].num_hits < kHitsToProtect) {
    Append(slot, EvictionSegment::kProbation);
    return;
  }
  Append(slot, EvictionSegment::kProtected);
  if (protected_.size > max_protected_) {
    const uint32_t demoted = protected_.oldest;
    Remove(demoted);
    // Its hits stay: forgetting them here but not in its children could rank a child above its
    // parent.
    Append(demoted, EvictionSegment::kProbation);
  }
}

void EvictionOrder::Remove(uint32_t slot) {
  StripeRecord& record = records_[slot];
  SPINDLE_DCHECK(record.segment != EvictionSegment::kNone);
  List& list = ListOf(record.segment);
  (record.older == kNoStripe ? list.oldest : records_[record.older].newer) = record.newer;
  (record.newer == kNoStripe ? list.newest : records_[record.newer].older) = record.older;
  record.older = kNoStripe;
  record.newer = kNoStripe;
  record.segment = EvictionSegment::kNone;
  --list.size;
}

uint32_t EvictionOrder::Oldest() const {
  return probation_.oldest != kNoStripe ? probation_.oldest : protected_.oldest;
}

}  // namespace spindle::kv
