// What a compute worker lends to Index: kernels, and buffers that only grow. Thread-safety: one
// worker at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/registry.h"

namespace spindle::sparse {

struct BuildWorkspace {
  explicit BuildWorkspace(const kernels::KernelTable& table) : kernels(table) {}

  const kernels::KernelTable& kernels;
  std::vector<const uint8_t*> keys;    // rows of a segment
  std::vector<const uint8_t*> values;  // the same
  std::vector<float> scratch;
};

}  // namespace spindle::sparse
