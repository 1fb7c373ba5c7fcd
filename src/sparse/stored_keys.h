// Where the keys of one sequence, layer and KV head lie in the store. Thread-safety: plain value.
#pragma once

#include <cstdint>
#include <span>

#include "kv/kv_geometry.h"

namespace spindle::sparse {

struct StoredKeys {
  const kv::KvGeometry* geometry;
  std::span<uint8_t* const> stripes;  // on the host, position order
  uint64_t kv_offset;                 // bytes of the layer and head in a stripe
};

}  // namespace spindle::sparse
