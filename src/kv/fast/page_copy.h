// Copies pages that lie scattered in host memory into frames. Thread-safety: a pure function over
// the caller's memory; callers divide the list among workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace spindle::kv {

struct PageCopy {
  const uint8_t* from;
  uint8_t* to;
};

// Copies `bytes` per page, in order: all of it, or one half of the page with both pointers at that
// half. REQUIRES: no overlap.
void CopyPages(std::span<const PageCopy> copies, size_t bytes);

}  // namespace spindle::kv
