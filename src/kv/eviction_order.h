// The order in which unreferenced cached stripes are evicted: segmented LRU. A stripe starts in
// probation and moves to the protected segment once it was hit twice; protected stripes beyond 80 %
// of the capacity fall back to probation. Every operation is O(1) and allocates nothing.
//
// Tails go before heads without extra bookkeeping: a sequence that uses a stripe uses all its
// ancestors, so an ancestor has at least as many hits and is released no earlier (the store
// releases a sequence's stripes from the tail). Hence the oldest stripe of probation, or of the
// protected segment when probation is empty, never has children in the index. Thread-safety:
// engine-thread only. Borrows the records, which must outlive it.
#pragma once

#include <cstdint>
#include <span>

#include "kv/stripe_record.h"

namespace spindle::kv {

class EvictionOrder {
 public:
  explicit EvictionOrder(std::span<StripeRecord> records);

  // Adds a stripe as the newest of the segment that its hits earn. REQUIRES: segment is kNone.
  void Add(uint32_t slot);

  // REQUIRES: segment is not kNone.
  void Remove(uint32_t slot);

  // The next victim, or kNoStripe.
  [[nodiscard]] uint32_t Oldest() const;

  [[nodiscard]] uint64_t size() const { return probation_.size + protected_.size; }

 private:
  struct List {
    uint32_t oldest = kNoStripe;
    uint32_t newest = kNoStripe;
    uint64_t size = 0;
  };

  [[nodiscard]] List& ListOf(EvictionSegment segment) {
    return segment == EvictionSegment::kProbation ? probation_ : protected_;
  }

  void Append(uint32_t slot, EvictionSegment segment);

  std::span<StripeRecord> records_;
  uint64_t max_protected_;
  List probation_;
  List protected_;
};

}  // namespace spindle::kv
