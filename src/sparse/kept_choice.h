// The last choice of a sequence whose policy chooses anew only at some rows. Lives as long as the
// sequence's tokens, so that a preempted one goes on as if nothing had happened.
// Thread-safety: value type; one step at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sparse/selection.h"

namespace spindle::sparse {

struct KeptChoice {
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  uint32_t anchor = kNone;        // position of the row that chose
  std::vector<Selection> groups;  // [layer][KV head]; empty in dense layers
};

}  // namespace spindle::sparse
