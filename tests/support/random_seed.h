// The seed of randomised tests: fixed by default, settable with --gtest_random_seed=N, printed by
// every test that uses it.
#pragma once

#include <cstdint>
#include <iostream>

#include <gtest/gtest.h>

namespace spindle::test {

inline uint64_t RandomSeed(uint64_t default_seed) {
  const auto given = GTEST_FLAG_GET(random_seed);
  const uint64_t seed = given != 0 ? static_cast<uint64_t>(given) : default_seed;
  std::cout << "seed " << seed << ", run again with --gtest_random_seed=" << seed << '\n';
  return seed;
}

}  // namespace spindle::test
