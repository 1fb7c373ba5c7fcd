#include "serving/seed_source.h"

#include <sys/random.h>

#include "base/status_macros.h"

namespace spindle::serving {

uint64_t RandomSeed() {
  uint64_t seed = 0;
  // Requests of up to 256 bytes are neither cut nor interrupted once the pool is initialised.
  SPINDLE_CHECK(getrandom(&seed, sizeof(seed), 0) == static_cast<ssize_t>(sizeof(seed)));
  return seed;
}

}  // namespace spindle::serving
