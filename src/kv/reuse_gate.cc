#include "kv/reuse_gate.h"

#include <bit>
#include <cstring>

namespace spindle::kv {
namespace {

// Keys are SHA-256 digests: some of their bytes choose the place, others tell keys apart.
uint64_t Word(const Digest& key, size_t index) {
  uint64_t word = 0;
  std::memcpy(&word, key.data() + index * sizeof(word), sizeof(word));
  return word;
}

}  // namespace

ReuseGate::ReuseGate(uint32_t num_places) : places_(std::bit_ceil(num_places)) {}

size_t ReuseGate::PlaceOf(const Digest& key) const {
  return Word(key, 0) & (places_.size() - 1);
}

uint32_t ReuseGate::CountUse(const Digest& key) {
  Place& place = places_[PlaceOf(key)];
  if (place.fingerprint != Word(key, 1)) {
    place = {.fingerprint = Word(key, 1), .uses = 0};
  }
  return ++place.uses;
}

uint32_t ReuseGate::Uses(const Digest& key) const {
  const Place& place = places_[PlaceOf(key)];
  return place.fingerprint == Word(key, 1) ? place.uses : 0;
}

}  // namespace spindle::kv
