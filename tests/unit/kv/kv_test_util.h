// Helpers of the KV store tests: token rows with content that depends on a tag only.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "kv/kv_store.h"

namespace spindle::kv {

// SplitMix64 (Steele, Lea, Flood 2014): one well mixed word per counter value.
inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

inline std::unique_ptr<KvStore> MakeStore(const KvGeometry& geometry,
                                          uint64_t num_stripes,
                                          bool prefix_cache = true) {
  auto store = KvStore::Create(
      {.host_bytes = num_stripes * geometry.stripe_bytes(), .prefix_cache = prefix_cache},
      geometry);
  EXPECT_TRUE(store.ok()) << store.status();
  return std::move(store).value();
}

// Calls visit(row, word) for each K and V row of a position; `word` seeds the row's content.
template <typename Visit>
void ForEachRow(
    const KvStore& store, SequenceId seq, uint32_t position, uint64_t tag, Visit visit) {
  const KvGeometry& geometry = store.geometry();
  uint8_t* stripe = store.View(seq).stripes[position / kStripeTokens];
  for (uint32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (uint32_t head = 0; head < geometry.num_kv_heads; ++head) {
      uint8_t* k = stripe +
                   geometry.row_offset(layer, static_cast<uint32_t>(position % kStripeTokens)) +
                   head * geometry.head_bytes();
      const uint64_t word = Mix(tag ^ (uint64_t{layer} << 40) ^ (uint64_t{head} << 20));
      visit(k, word);
      visit(k + geometry.v_offset(), Mix(word));
    }
  }
}

inline void WriteToken(const KvStore& store, SequenceId seq, uint32_t position, uint64_t tag) {
  const size_t words = store.geometry().row_bytes() / sizeof(uint64_t);
  ForEachRow(store, seq, position, tag, [words](uint8_t* row, uint64_t word) {
    for (size_t i = 0; i < words; ++i) {
      const uint64_t value = word + i;
      std::memcpy(row + i * sizeof(value), &value, sizeof(value));
    }
  });
}

[[nodiscard]] inline bool TokenIs(const KvStore& store,
                                  SequenceId seq,
                                  uint32_t position,
                                  uint64_t tag) {
  bool equal = true;
  const size_t words = store.geometry().row_bytes() / sizeof(uint64_t);
  ForEachRow(store, seq, position, tag, [words, &equal](const uint8_t* row, uint64_t word) {
    for (size_t i = 0; i < words; ++i) {
      const uint64_t value = word + i;
      equal = equal && std::memcmp(row + i * sizeof(value), &value, sizeof(value)) == 0;
    }
  });
  return equal;
}

}  // namespace spindle::kv
