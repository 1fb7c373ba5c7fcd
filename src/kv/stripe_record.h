// Bookkeeping of one stripe slot of the host tier. Shared by the store, the prefix index and the
// eviction order. Thread-safety: value type, engine-thread only.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

#include "base/hash.h"

namespace spindle::kv {

// "No slot" in links and parents.
inline constexpr uint32_t kNoStripe = std::numeric_limits<uint32_t>::max();

// XXH3-128 of the raw bytes of a stripe: tells equal content from equal keys, without any security
// claim.
struct ContentChecksum {
  uint64_t low = 0;
  uint64_t high = 0;

  auto operator<=>(const ContentChecksum&) const = default;
};

enum class StripeState : uint8_t {
  kFree,    // content without meaning
  kOpen,    // written by exactly one sequence
  kSealed,  // 64 tokens, immutable
};

enum class EvictionSegment : uint8_t {
  kNone,  // not evictable: referenced, or not in the prefix index
  kProbation,
  kProtected,
};

struct StripeRecord {
  Digest key{};              // valid while `indexed`
  ContentChecksum checksum;  // valid while `indexed`
  uint32_t parent = kNoStripe;
  uint32_t num_children = 0;  // indexed stripes whose parent this is
  uint32_t num_refs = 0;      // sequences that list this stripe
  uint32_t bucket_next = kNoStripe;
  uint32_t older = kNoStripe;  // neighbours in the eviction order
  uint32_t newer = kNoStripe;
  StripeState state = StripeState::kFree;
  EvictionSegment segment = EvictionSegment::kNone;
  uint8_t num_hits = 0;  // prefix hits, saturating at kHitsToProtect
  bool indexed = false;
};

// Prefix hits that move a stripe from probation to the protected segment.
inline constexpr uint8_t kHitsToProtect = 2;

}  // namespace spindle::kv
