// Options of the KV store, one tier for now (host memory, the in-place mode).
#pragma once

#include <cstdint>

namespace spindle::kv {

struct KvOptions {
  // Bytes of the host tier: stripes of running sequences and the prefix cache. Committed lazily in
  // 64 MiB slabs. At least two stripes; flag --kv-host-bytes (alias --kv-dram-bytes).
  uint64_t host_bytes = 0;
  // Keep sealed stripes for later requests with the same prefix; flag --enable-prefix-caching.
  bool prefix_cache = true;
};

}  // namespace spindle::kv
