// Replacement in a cache group: LRU over a range of ages, with one byte per slot. Everything about
// one group is its stamps, one byte per slot, and an LruState of four bytes; BucketedLru itself is
// the policy, constant and shared by all groups. Used by the fast tier and by the simulator, so
// both choose the same victims.
//
//   lru.Advance(&state, stamps);                           // once per step
//   stamps[slot] = kernels::kLruPinned;                    // pages of this step: hits …
//   count = lru.Take(&state, stamps, n, out);              // … n slots for misses: free ones, then
//   for (slot : out) stamps[slot] = kernels::kLruPinned;   //   the least recently used
//   lru.Unpin(state, stamps);                              // after attention: used now
//
// With quantum 1 the order is that of exact LRU for ages below range / 2 steps (all pages of a step
// tie); everything older falls into one bucket, out of which a rotating hand takes. Thread-safety:
// BucketedLru is constant; a group belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/registry.h"

namespace spindle::kv {

struct LruOptions {
  // Ages that are told apart, an even number in 4 … 128. 64 is within 0.1 point of exact LRU in hit
  // ratio on synthetic traces, 16 within 0.4.
  uint32_t range = 64;
  // Steps per age, 1 … 64. More than 1 only pays where pages stay longer than 64 steps.
  uint32_t quantum_steps = 1;
};

// ERRORS: kInvalidArgument naming the field and its range.
[[nodiscard]] absl::Status ValidateLruOptions(const LruOptions& options);

struct LruState {
  uint8_t now = 1;    // stamp of pages used in this step
  uint8_t ticks = 0;  // steps since `now` was reached
  uint16_t hand = 0;  // slot at which the search in the border bucket starts
};

class BucketedLru {
 public:
  // Slots of a group, because the hand has 16 bits.
  static constexpr uint32_t kMaxSlots = 65535;

  // REQUIRES: valid options. Borrows the table, a constant.
  BucketedLru(const LruOptions& options, const kernels::KernelTable& kernels);

  [[nodiscard]] const LruOptions& options() const { return options_; }

  // Begins the next step. True, once per range · quantum / 2 steps, when the caller must Rescale
  // all stamps of the group before it uses them.
  [[nodiscard]] bool Advance(LruState* state) const;

  // Halves the range of ages: the older half becomes one bucket. Any piece of the stamps at a time;
  // free and pinned slots stay what they are.
  void Rescale(std::span<uint8_t> stamps) const;

  // Both of the above, for stamps that lie together.
  void Advance(LruState* state, std::span<uint8_t> stamps) const;

  // The slots for up to n pages: free ones first, then the least recently used, never pinned ones.
  // Writes them to `out` in ascending order and returns how many. Marks nothing: whether a slot was
  // free or holds a victim tells its stamp. O(slots), no allocation.
  //   REQUIRES: stamps.size() ≤ kMaxSlots, n ≤ out.size()
  [[nodiscard]] uint32_t Take(LruState* state,
                              std::span<const uint8_t> stamps,
                              uint32_t n,
                              std::span<uint32_t> out) const;

  // Pinned slots become used now. Any piece of the stamps at a time.
  static void Unpin(const LruState& state, std::span<uint8_t> stamps);

  // Slots used in the last `steps` steps, this one included, and pinned ones; for working sets.
  [[nodiscard]] uint32_t CountUsedWithin(const LruState& state,
                                         std::span<const uint8_t> stamps,
                                         uint32_t steps) const;

 private:
  LruOptions options_;
  const kernels::KernelTable* kernels_;
};

}  // namespace spindle::kv
