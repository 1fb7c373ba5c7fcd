// Counts heap allocations of the whole process, for tests that show a path allocates nothing, or
// how much a structure takes. Link allocation_counter.cc into the test binary: it replaces the
// global operator new. Thread-safety: thread-safe.
#pragma once

#include <cstdint>

namespace spindle::test {

// Calls of operator new so far, on all threads.
[[nodiscard]] uint64_t AllocationCount();

// Bytes from operator new that are not freed yet, with the allocator's rounding and headers.
[[nodiscard]] uint64_t AllocatedBytes();

}  // namespace spindle::test
