// Seeds for requests that bring none, from the operating system's generator. Thread-safety:
// thread-safe.
#pragma once

#include <cstdint>

namespace spindle::serving {

[[nodiscard]] uint64_t RandomSeed();

}  // namespace spindle::serving
