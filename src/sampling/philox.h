// Philox4x32-10, a counter-based random generator (Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3"): a draw is a pure function of its coordinates, so it does not depend on batching,
// preemption or the order of requests. Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstdint>

namespace spindle::sampling {

using PhiloxBlock = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

[[nodiscard]] PhiloxBlock Philox4x32(PhiloxBlock counter, PhiloxKey key);

// Uniform in [0, 1) with 53 bits. The seed is the key; the counter is (position low, position high,
// choice, 0), so that choice 0 of one choice equals choice 0 of three.
[[nodiscard]] double UniformAt(uint64_t seed, uint32_t choice, uint64_t position);

}  // namespace spindle::sampling
