#include "sampling/philox.h"

namespace spindle::sampling {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53U;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57U;
// Weyl sequence of the key: golden ratio and sqrt(3) - 1.
constexpr uint32_t kWeyl0 = 0x9E3779B9U;
constexpr uint32_t kWeyl1 = 0xBB67AE85U;
constexpr int kRounds = 10;

constexpr uint32_t Low(uint64_t x) {
  return static_cast<uint32_t>(x);
}

constexpr uint32_t High(uint64_t x) {
  return static_cast<uint32_t>(x >> 32);
}

}  // namespace

PhiloxBlock Philox4x32(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {High(product1) ^ counter[1] ^ key[0],
               Low(product1),
               High(product0) ^ counter[3] ^ key[1],
               Low(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double UniformAt(uint64_t seed, uint32_t choice, uint64_t position) {
  const PhiloxBlock bits =
      Philox4x32({Low(position), High(position), choice, 0}, {Low(seed), High(seed)});
  const uint64_t mantissa = ((uint64_t{bits[0]} << 32) | bits[1]) >> 11;
  return static_cast<double>(mantissa) * 0x1.0p-53;
}

}  // namespace spindle::sampling
