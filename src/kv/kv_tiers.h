// The tiers of one model's KV, as they are handed to the engine. Thread-safety: value type.
#pragma once

#include <memory>

#include "kv/disk_tier.h"
#include "kv/fast/emulated_link.h"
#include "kv/fast/fast_tier.h"
#include "kv/kv_store.h"
#include "kv/trace/kv_trace.h"

namespace spindle::kv {

struct KvTiers {
  std::unique_ptr<KvStore> host;
  std::unique_ptr<DiskTier> disk = nullptr;      // borrows `host`; null: no disk tier
  std::unique_ptr<FastTier> fast = nullptr;      // null: attention reads host pages in place
  std::unique_ptr<EmulatedLink> link = nullptr;  // from host to fast; null: as fast as copies are
  std::unique_ptr<KvTrace> trace = nullptr;      // of requests and of the fast tier; null: none
};

}  // namespace spindle::kv
