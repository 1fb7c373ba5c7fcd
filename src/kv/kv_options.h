// Options of the KV tiers. Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "kv/fast/emulated_link.h"

namespace spindle::kv {

// Where attention reads pages.
enum class KvMode : uint8_t {
  kInPlace,       // in host memory, where they are
  kMirror,        // in a fast tier that pages are copied to first, as on a device
  kEmulatedLink,  // the same, over a link of a given speed
};

struct KvOptions {
  // Bytes of the host tier: stripes of running sequences and the prefix cache. Committed lazily in
  // 64 MiB slabs. At least two stripes; flag --kv-host-bytes (alias --kv-dram-bytes).
  uint64_t host_bytes = 0;
  // Keep sealed stripes for later requests with the same prefix; flag --enable-prefix-caching.
  bool prefix_cache = true;
  // Folder of the disk tier, shared by the stores of several models; empty: none. What is written
  // there survives the process. REQUIRES: prefix_cache. Flag --kv-disk-path.
  std::string disk_path = {};
  // Bytes of the disk tier; 0: the smaller of 32 GiB and half of what is free; flag
  // --kv-disk-bytes.
  uint64_t disk_bytes = 0;
  // Bytes of the file system that stay free, and at least 5 % of it; flag --kv-disk-min-free.
  uint64_t disk_min_free_bytes = uint64_t{2} << 30;
  // Sessions that the disk tier keeps, ≥ 1; flag --kv-max-sessions.
  uint32_t max_sessions = 4096;
  KvMode mode = KvMode::kInPlace;  // flag --kv-mode
  // Bytes of the fast tier in the modes that have one; 0: a quarter of host_bytes; flag
  // --kv-fast-bytes.
  uint64_t fast_bytes = 0;
  LinkOptions link = {};  // of kEmulatedLink; flags --sim-link-gbps, --sim-link-latency-us
  // Folder that page accesses and requests are recorded to; empty: nowhere. Flag --kv-trace.
  std::string trace_path = {};
  // Bytes of each file there, 64 KiB … 1 GiB; flag --kv-trace-bytes.
  uint64_t trace_file_bytes = uint64_t{256} << 20;
};

}  // namespace spindle::kv
