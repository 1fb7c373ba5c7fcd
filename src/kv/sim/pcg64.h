// The random numbers of the simulator: PCG64 (O'Neill 2014; 128-bit linear congruential state,
// XSL-RR output), so that a seed means the same everywhere. Written from the published definition;
// gives the numbers of pcg64 with seed and stream as initstate and initseq. Deterministic, not
// secret. Thread-safety: thread-compatible value type.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace spindle::kv::sim {

class Pcg64 {
 public:
  Pcg64(uint64_t seed, uint64_t stream) : increment_(Uint128{stream} << 1 | 1) {
    Step();
    state_ += seed;
    Step();
  }

  uint64_t Next() {
    Step();
    const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    return std::rotr(folded, static_cast<int>(state_ >> 122));
  }

  // In [0, 1), a multiple of 2^-53.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // In [0, bound), by the upper half of a product; biased by less than bound / 2^64.
  //   REQUIRES: bound ≥ 1
  uint64_t Below(uint64_t bound) { return static_cast<uint64_t>(Uint128{Next()} * bound >> 64); }

  // Standard normal, by Box and Muller: two uniforms give two deviates, the cosine first.
  double Normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
    const double angle = 2.0 * std::numbers::pi * Uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  __extension__ using Uint128 = unsigned __int128;

  static constexpr Uint128 kMultiplier =
      Uint128{0x2360ED051FC65DA4} << 64 | Uint128{0x4385DF649FCCF645};

  void Step() { state_ = state_ * kMultiplier + increment_; }

  Uint128 state_ = 0;
  Uint128 increment_;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace spindle::kv::sim
