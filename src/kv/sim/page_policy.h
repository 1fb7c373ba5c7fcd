// Replacement policies of one cache group behind one interface, with the rules of the fast tier:
// all pages of a step are mandatory. They are read in the step, hits first get to stay, misses take
// free frames, then those of victims, lowest page first; no page of a step is a victim in it, and
// what finds no frame is streamed and not cached. Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/fast/bucketed_lru.h"
#include "kv/sim/selection_trace.h"

namespace spindle::kv::sim {

enum class PolicyKind : uint8_t {
  kExactLru,  // oldest step of last use; within a step the lower page id goes first
  kBucketed,  // the fast tier itself
  kFifo,      // oldest arrival
  kRandom,    // any, by PCG64
  kClock,     // second chance: one bit per frame, set at every use
  kSlru,      // probation, then at the second use protected; at most 80 % of the frames
  kArc,       // recent and frequent lists that adapt to their ghosts (Megiddo and Modha 2003)
  kBelady,    // farthest next use: knows the trace; the bound of all others
};

struct PolicySpec {
  PolicyKind kind = PolicyKind::kExactLru;
  LruOptions lru = {};       // kBucketed
  uint64_t random_seed = 1;  // kRandom
};

// "lru", "bucketed", "bucketed:RANGE", "bucketed:RANGE/QUANTUM", "fifo", "random", "clock", "slru",
// "arc", "belady". ERRORS: kInvalidArgument with the list.
[[nodiscard]] absl::StatusOr<PolicySpec> ParsePolicy(std::string_view text);

// The text that ParsePolicy understands.
[[nodiscard]] std::string PolicyName(const PolicySpec& spec);

class PagePolicy {
 public:
  virtual ~PagePolicy() = default;

  // One step: `pages` as in SelectionTrace. Returns the number of hits.
  //   is_hit  [pages.size()] 1 for pages that were resident
  virtual uint32_t Step(std::span<const uint32_t> pages, std::span<uint8_t> is_hit) = 0;
};

// An empty cache of `capacity_pages`. kBelady must be given the steps of `trace` in order, the
// others use its number of pages and largest step only. Borrows the trace.
// ERRORS: kInvalidArgument: capacity 0; bucketed: LRU options, capacity not a multiple of 8 or over
// 65,528, more than 4,194,304 pages; kResourceExhausted (memory).
[[nodiscard]] absl::StatusOr<std::unique_ptr<PagePolicy>> MakePagePolicy(
    const PolicySpec& spec, uint32_t capacity_pages, const SelectionTrace& trace);

struct HitCount {
  uint64_t accesses = 0;
  uint64_t hits = 0;

  [[nodiscard]] double ratio() const {
    return accesses == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(accesses);
  }

  HitCount& operator+=(const HitCount& other) {
    accesses += other.accesses;
    hits += other.hits;
    return *this;
  }
};

// Runs the whole trace; counts what comes after the warm-up. ERRORS: those of MakePagePolicy.
[[nodiscard]] absl::StatusOr<HitCount> Simulate(const PolicySpec& spec,
                                                uint32_t capacity_pages,
                                                const SelectionTrace& trace);

}  // namespace spindle::kv::sim
