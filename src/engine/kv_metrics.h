// The metric families of the KV tiers that admission, preemption and the tiers themselves move
// (docs/configuration.md): what was looked up and found where, what the tiers hold, what was not
// stored, not loaded, and computed twice. The others are EngineMetrics', FastMetrics' and
// SessionMetrics'. Thread-safety: thread-safe. Updates never block or allocate. Borrows the
// registry.
#pragma once

#include <array>
#include <cstdint>

#include "kv/disk_tier.h"
#include "kv/kv_store.h"
#include "metrics/metrics.h"

namespace spindle::engine {

// A counter that follows a total kept elsewhere.
struct FollowingCounter {
  metrics::Counter counter;
  uint64_t published = 0;

  void Follow(uint64_t total) {
    counter.Add(static_cast<double>(total - published));
    published = total;
  }
};

// What an admission looked up, and what it found where.
struct PrefixLookup {
  uint32_t num_tokens = 0;    // of the prompt, or of the history of a preempted sequence
  uint32_t num_stripes = 0;   // of them that a cache could have
  uint32_t host_stripes = 0;  // found in the host tier
  uint32_t disk_stripes = 0;  // brought from disk for it
  bool has_disk = false;      // the disk tier was asked for what the host tier lacked
  bool resumes = false;       // after preemption
};

// Totals since the start, of prompts and resumed sequences together.
struct PrefixTotals {
  struct Tier {
    uint64_t lookup_tokens = 0;
    uint64_t hit_tokens = 0;

    [[nodiscard]] uint64_t miss_tokens() const { return lookup_tokens - hit_tokens; }
  };

  Tier host;
  Tier disk;
};

class KvMetrics {
 public:
  explicit KvMetrics(metrics::Registry& registry);

  void CountLookup(const PrefixLookup& lookup) const;
  [[nodiscard]] PrefixTotals Totals() const;

  // Both at the end of a step; `disk` only when there is a disk tier.
  void PublishHost(const kv::KvStats& host);
  void PublishDisk(const kv::DiskTierStats& disk);

  metrics::Counter recomputed_after_preemption;  // tokens
  metrics::Counter preempted_to_recompute;       // sequences
  metrics::Counter preempted_to_spill;

 private:
  enum Tier : uint8_t { kHost, kDisk, kNumTiers };

  enum Unit : uint8_t { kTokens, kStripes, kNumUnits };

  struct Lookups {
    metrics::Counter lookups;
    metrics::Counter hits;
    metrics::Counter misses;

    void Count(uint64_t asked, uint64_t found) const;
  };

  void AddLookupFamilies(metrics::Registry& registry);
  void AddByteFamilies(metrics::Registry& registry);
  void AddDiskFamilies(metrics::Registry& registry);
  void AddDeviceFamilies(metrics::Registry& registry);

  // By tier, unit, and whether a sequence resumes.
  std::array<std::array<std::array<Lookups, 2>, kNumUnits>, kNumTiers> lookups_;

  struct States {
    metrics::Gauge capacity;
    metrics::Gauge live;
    metrics::Gauge cached;
    metrics::Gauge pinned;
    metrics::Gauge inflight;
  };

  std::array<States, kNumTiers> bytes_;
  uint64_t stripe_bytes_ = 0;
  FollowingCounter gated_;
  FollowingCounter dropped_;
  std::array<FollowingCounter, kv::disk::kNumStoreSkips> skips_;
  std::array<FollowingCounter, kv::disk::kNumLoadFailures> failures_;
  FollowingCounter not_loaded_tokens_;
  FollowingCounter lost_stripes_;
  std::array<metrics::Gauge, 4> disk_state_;  // by kv::disk::TierState
  std::array<FollowingCounter, kv::disk::kNumDeviceErrors> errors_;
  FollowingCounter short_reads_;
  FollowingCounter short_writes_;
  FollowingCounter outages_;
  FollowingCounter recoveries_;
  metrics::Gauge direct_;
  metrics::Gauge io_depth_;
};

}  // namespace spindle::engine
