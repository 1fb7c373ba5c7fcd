// The tiers of one model's KV, as they are handed to the engine. Thread-safety: value type.
#pragma once

#include <memory>

#include "kv/disk_tier.h"
#include "kv/kv_store.h"

namespace spindle::kv {

struct KvTiers {
  std::unique_ptr<KvStore> host;
  std::unique_ptr<DiskTier> disk = nullptr;  // borrows `host`; null: no disk tier
};

}  // namespace spindle::kv
