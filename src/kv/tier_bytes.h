// What the bookkeeping of the tiers takes at most, for those who add up memory before it is taken.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "kv/disk_tier.h"
#include "kv/kv_geometry.h"

namespace spindle::kv {

// Of a host tier of `host_bytes`: records of its stripes and the prefix index.
[[nodiscard]] uint64_t HostIndexBytes(const KvGeometry& geometry, uint64_t host_bytes);

struct DiskTierBytes {
  uint64_t index;      // of records
  uint64_t transfers;  // jobs with their staging memory, loads and stores in progress
  uint64_t sessions;   // the book, and manifests that are being written or read
};

// Of a disk tier over that host tier, for sequences of up to `max_model_len` tokens.
[[nodiscard]] DiskTierBytes DiskTierBytesOf(const DiskTierOptions& options,
                                            const disk::DiskOptions& disk_options,
                                            const KvGeometry& geometry,
                                            uint64_t host_bytes,
                                            uint32_t max_model_len);

}  // namespace spindle::kv
