// Victims of bucketed LRU by comparing and counting: 64 stamps become one word per comparison, so a
// search for the border bucket costs a handful of instructions per 64 slots and step, and needs no
// histogram.
#include "kernels/api/lru.h"

#include <immintrin.h>

#include "kernels/cpu/simd.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {
namespace {

constexpr uint32_t kWord = 64;

// Bit i: from[i] ≤ bound.
SPINDLE_INLINE uint64_t AtMost(const uint8_t* from, uint8_t bound) {
#if defined(__AVX512BW__)
  return _mm512_cmple_epu8_mask(_mm512_loadu_si512(from),
                                _mm512_set1_epi8(static_cast<char>(bound)));
#elif defined(__AVX2__)
  const __m256i limit = _mm256_set1_epi8(static_cast<char>(bound));
  uint64_t bits = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
    const int mask = _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(v, limit), v));
    bits |= uint64_t{static_cast<uint32_t>(mask)} << (32 * i);
  }
  return bits;
#else
  const __m128i limit = _mm_set1_epi8(static_cast<char>(bound));
  uint64_t bits = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i));
    const int mask = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(v, limit), v));
    bits |= uint64_t{static_cast<uint32_t>(mask)} << (16 * i);
  }
  return bits;
#endif
}

// The stamps in words of 64; slots behind the last look pinned.
struct Stamps {
  const uint8_t* full;
  uint32_t num_full;
  uint32_t num_words;
  uint8_t tail[kWord];
};

SPINDLE_INLINE const uint8_t* WordOf(const Stamps& stamps, uint32_t word) {
  return word < stamps.num_full ? stamps.full + word * kWord : stamps.tail;
}

SPINDLE_INLINE void Split(const VictimArgs& args, Stamps* stamps) {
  stamps->full = args.stamps;
  stamps->num_full = args.num_slots / kWord;
  const uint32_t rest = args.num_slots % kWord;
  stamps->num_words = stamps->num_full + (rest != 0 ? 1 : 0);
  if (rest != 0) {
    __builtin_memset(stamps->tail, kLruPinned, kWord);
    __builtin_memcpy(stamps->tail, args.stamps + stamps->num_full * kWord, rest);
  }
}

SPINDLE_INLINE uint32_t CountAtMost(const Stamps& stamps, uint32_t bound) {
  uint32_t count = 0;
  for (uint32_t word = 0; word < stamps.num_words; ++word) {
    count += CountBits(AtMost(WordOf(stamps, word), static_cast<uint8_t>(bound)));
  }
  return count;
}

// Slots of word `word` with a stamp below the border, and those with the border's.
struct WordMasks {
  uint64_t older;
  uint64_t border;
};

SPINDLE_INLINE WordMasks MasksOf(const Stamps& stamps, uint32_t word, uint32_t border) {
  const uint8_t* from = WordOf(stamps, word);
  const uint64_t at_most = AtMost(from, static_cast<uint8_t>(border));
  const uint64_t older = border == 0 ? 0 : AtMost(from, static_cast<uint8_t>(border - 1));
  return {older, at_most & ~older};
}

// Bits of word `word` whose slots are at or behind the hand.
SPINDLE_INLINE uint64_t BehindHand(uint32_t word, uint32_t hand) {
  const uint32_t base = word * kWord;
  if (hand <= base) {
    return ~uint64_t{0};
  }
  return hand - base >= kWord ? 0 : ~uint64_t{0} << (hand - base);
}

// The lowest *quota bits of `bits`, which are taken off the quota.
SPINDLE_INLINE uint64_t TakeLowest(uint64_t bits, uint32_t* quota) {
  const uint32_t available = CountBits(bits);
  if (available <= *quota) {
    *quota -= available;
    return bits;
  }
  uint64_t left = bits;
  for (; *quota > 0; --*quota) {
    left &= left - 1;
  }
  return bits & ~left;
}

SPINDLE_INLINE uint32_t EndOf(uint32_t word, uint64_t bits) {
  return word * kWord + kWord - static_cast<uint32_t>(__builtin_clzll(bits));
}

struct Border {
  uint32_t bucket;
  uint32_t older;  // slots in older buckets
};

// The smallest bucket up to which there are `wanted` slots; max_stamp if there are fewer. Few are
// wanted of many as a rule, so it is one of the oldest: steps double from there, then halve.
SPINDLE_INLINE Border BorderOf(const Stamps& stamps, uint32_t max_stamp, uint32_t wanted) {
  uint32_t low = 0;
  uint32_t high = max_stamp;
  uint32_t older = 0;
  uint32_t middle = 1;
  bool is_below = false;  // high is known to make enough
  while (low < high) {
    middle = is_below || middle >= high ? (low + high) / 2 : middle;
    const uint32_t count = CountAtMost(stamps, middle);
    if (count >= wanted) {
      high = middle;
      is_below = true;
    } else {
      low = middle + 1;
      older = count;
      middle = 2 * middle + 1;
    }
  }
  return {low, older};
}

// Slots of the border bucket at or behind the hand, but at most `enough`.
SPINDLE_INLINE uint32_t CountBehind(const Stamps& stamps,
                                    uint32_t border,
                                    uint32_t hand,
                                    uint32_t enough) {
  uint32_t count = 0;
  for (uint32_t word = hand / kWord; word < stamps.num_words && count < enough; ++word) {
    count += CountBits(MasksOf(stamps, word, border).border & BehindHand(word, hand));
  }
  return count < enough ? count : enough;
}

}  // namespace

VictimResult SelectVictims(const VictimArgs& args, uint32_t* out) {
  Stamps stamps;
  Split(args, &stamps);
  uint32_t wanted = args.num_wanted;
  Border found = BorderOf(stamps, args.max_stamp, wanted);
  if (found.bucket == args.max_stamp) {
    if (const uint32_t not_pinned = CountAtMost(stamps, args.max_stamp); not_pinned < wanted) {
      wanted = not_pinned;
      found = BorderOf(stamps, args.max_stamp, wanted);
    }
  }
  if (wanted == 0) {
    return {0, args.hand};
  }
  const uint32_t border = found.bucket;
  const uint32_t rest = wanted - found.older;
  uint32_t quota_behind = CountBehind(stamps, border, args.hand, rest);
  uint32_t quota_before = rest - quota_behind;
  const bool wraps = quota_before > 0;
  uint32_t hand = args.hand;
  uint32_t count = 0;
  for (uint32_t word = 0; word < stamps.num_words && count < wanted; ++word) {
    const WordMasks masks = MasksOf(stamps, word, border);
    const uint64_t behind_hand = BehindHand(word, args.hand);
    const uint64_t before = TakeLowest(masks.border & ~behind_hand, &quota_before);
    const uint64_t after = TakeLowest(masks.border & behind_hand, &quota_behind);
    const uint64_t last = wraps ? before : after;
    hand = last != 0 && border != kLruFree ? EndOf(word, last) : hand;
    for (uint64_t bits = masks.older | before | after; bits != 0; bits &= bits - 1) {
      out[count++] = word * kWord + static_cast<uint32_t>(__builtin_ctzll(bits));
    }
  }
  return {count, hand};
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
