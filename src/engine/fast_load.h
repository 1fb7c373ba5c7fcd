// What the fast tier holds and what steps found in it. Thread-safety: plain value.
#pragma once

#include <cstdint>

#include "sparse/mirror_attention.h"

namespace spindle::engine {

// The fast tier as of the last step.
struct FastLoad {
  uint64_t capacity_bytes = 0;
  uint64_t free_bytes = 0;   // that no sequence has and no index takes; rings are not free
  uint64_t index_bytes = 0;  // set aside for indexes of running sequences, which lie in host memory
  bool is_emulated = false;  // behind an emulated link
  sparse::MirrorCounters counters = {};
};

}  // namespace spindle::engine
