// Finds sealed stripes by their full 32-byte content key. Chained hashing through the records
// themselves, so that nothing is allocated after construction. Thread-safety: engine-thread only.
// Borrows the records, which must outlive the index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/stripe_record.h"

namespace spindle::kv {

class PrefixIndex {
 public:
  explicit PrefixIndex(std::span<StripeRecord> records);

  // The slot stored under `key`, or kNoStripe. Expected cost O(1): keys are SHA-256 digests.
  [[nodiscard]] uint32_t Find(const Digest& key) const;

  // REQUIRES: the slot is sealed, not indexed; no slot has its key; `parent` (or kNoStripe for the
  // first stripe of a chain) is indexed.
  void Insert(uint32_t slot, uint32_t parent);

  // REQUIRES: indexed, without children.
  void Erase(uint32_t slot);

  [[nodiscard]] uint64_t num_entries() const { return num_entries_; }

 private:
  [[nodiscard]] size_t BucketOf(const Digest& key) const;

  std::span<StripeRecord> records_;
  std::vector<uint32_t> buckets_;  // first slot of each chain; a power of two
  uint64_t num_entries_ = 0;
};

}  // namespace spindle::kv
