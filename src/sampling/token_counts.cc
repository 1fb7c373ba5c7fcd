#include "sampling/token_counts.h"

#include <algorithm>
#include <bit>

#include "base/status_macros.h"

namespace spindle::sampling {

void TokenCounts::Reserve(size_t max_distinct) {
  entries_.clear();
  entries_.reserve(max_distinct);
  // At most half full, so probe sequences stay short.
  slots_.assign(std::bit_ceil(2 * std::max<size_t>(max_distinct, 1)), 0);
}

size_t TokenCounts::Find(TokenId token) {
  const size_t mask = slots_.size() - 1;
  // Fibonacci hashing spreads consecutive ids.
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  size_t slot = ((static_cast<uint64_t>(token) * kGoldenRatio) >> 32) & mask;
  while (slots_[slot] != 0) {
    const size_t entry = slots_[slot] - 1;
    if (entries_[entry].token == token) {
      return entry;
    }
    slot = (slot + 1) & mask;
  }
  SPINDLE_CHECK(entries_.size() < entries_.capacity());
  entries_.push_back({token, 0});
  slots_[slot] = static_cast<uint32_t>(entries_.size());
  return entries_.size() - 1;
}

}  // namespace spindle::sampling
