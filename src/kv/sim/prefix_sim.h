// Replays a request trace against one pool of prefix units (512 tokens): how much of the prompts
// the prefix cache would have held. A request hits the longest run of its first units that are
// there; then all its units are used. One pool for all tenants, whose units are never shared.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kv/sim/page_policy.h"
#include "kv/sim/request_trace.h"

namespace spindle::kv::sim {

enum class PrefixPolicy : uint8_t {
  kFifo,      // oldest arrival, heads of a prompt before tails
  kBucketed,  // 8 ages of capacity / 2 uses each; inside an age in order of arrival there
  kExactLru,  // oldest use, tails before heads
  kServer,    // the server's own EvictionOrder: segmented LRU, tails before heads
  kBelady,    // farthest next use per unit: a reference, not an optimum, under prefix hits
};

// "fifo", "bucketed", "lru", "server", "belady". ERRORS: kInvalidArgument with the list.
[[nodiscard]] absl::StatusOr<PrefixPolicy> ParsePrefixPolicy(std::string_view text);

// Accesses are units of prompts, hits those that were there.
// ERRORS: kInvalidArgument (capacity below the units of the longest prompt, or over 2^28).
[[nodiscard]] absl::StatusOr<HitCount> SimulatePrefixCache(PrefixPolicy policy,
                                                           uint32_t capacity_units,
                                                           const RequestTrace& trace);

// What a pool without bound would reach.
[[nodiscard]] double PrefixHitCeiling(const RequestTrace& trace);

}  // namespace spindle::kv::sim
