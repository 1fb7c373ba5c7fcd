// Victims of bucketed LRU: which slots of a cache group to use next, by threshold and without a
// sort. Thread-safety: pure functions over the caller's memory. All tables give the same bits.
//
// A stamp is the age bucket of a slot: 0 = the slot is free, 1 … max_stamp = last use, larger is
// younger, 255 = pinned, never a victim.
#pragma once

#include <cstdint>

namespace spindle::kernels {

inline constexpr uint8_t kLruFree = 0;
inline constexpr uint8_t kLruPinned = 255;

struct VictimArgs {
  const uint8_t* stamps;  // [num_slots], each ≤ max_stamp or kLruPinned
  uint32_t num_slots;
  uint32_t max_stamp;   // < kLruPinned
  uint32_t num_wanted;  // room in the output
  uint32_t hand;        // where the search in the border bucket starts; ≤ num_slots
};

struct VictimResult {
  uint32_t count;  // min(num_wanted, slots that are not pinned)
  uint32_t hand;   // for the next call: behind the last slot taken from the border bucket, or as it
                   // was when that bucket is the free one or nothing was taken
};

// Of the slots that are not pinned: all with a stamp below b and, from the hand onwards and around,
// as many with stamp b as are still wanted; b is the smallest bucket for which that suffices.
// SelectVictims of each table writes them in ascending order.

}  // namespace spindle::kernels
