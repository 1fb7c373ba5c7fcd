// Decides which prefixes are worth writing to disk: those that came at least `min_uses` times.
// A bounded table of fingerprints that forgets by being overwritten, so that a flood of one-shot
// prompts costs nothing. Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace spindle::kv {

class ReuseGate {
 public:
  // `num_places` is rounded up to a power of two; kPlaceBytes each.
  explicit ReuseGate(uint32_t num_places);

  // Counts one use of the prefix that ends in `key`; returns how often it was seen, as far as the
  // table remembers.
  uint32_t CountUse(const Digest& key);

  [[nodiscard]] uint32_t Uses(const Digest& key) const;

  static constexpr uint32_t kPlaceBytes = 16;

 private:
  struct Place {
    uint64_t fingerprint = 0;
    uint32_t uses = 0;
  };

  static_assert(sizeof(Place) == kPlaceBytes);

  [[nodiscard]] size_t PlaceOf(const Digest& key) const;

  std::vector<Place> places_;
};

}  // namespace spindle::kv
