#include "engine/kv_metrics.h"

#include <algorithm>
#include <string>

namespace spindle::engine {
namespace {

using kv::disk::DeviceError;
using kv::disk::LoadFailure;
using kv::disk::StoreSkip;
using kv::disk::TierState;
using metrics::Labels;

constexpr std::array<TierState, 4> kStates = {
    TierState::kOk, TierState::kReadOnly, TierState::kDegraded, TierState::kOff};

uint64_t AsCount(const metrics::Counter& counter) {
  return static_cast<uint64_t>(counter.Value());
}

}  // namespace

KvMetrics::KvMetrics(metrics::Registry& registry) {
  AddLookupFamilies(registry);
  AddByteFamilies(registry);
  AddDiskFamilies(registry);
  AddDeviceFamilies(registry);
  constexpr const char* kRecomputed = "spindle_kv_recomputed_tokens_total";
  constexpr const char* kRecomputedHelp =
      "Tokens whose KV is computed again, or although a lower tier had it, by cause: preempt, "
      "load.";
  recomputed_after_preemption =
      registry.AddCounter(kRecomputed, kRecomputedHelp, {{"cause", "preempt"}});
  not_loaded_tokens_.counter =
      registry.AddCounter(kRecomputed, kRecomputedHelp, {{"cause", "load"}});
  const auto preempted = [&registry](const char* level) {
    return registry.AddCounter("spindle_kv_preemptions_total",
                               "Sequences that gave up their memory before their end, by what "
                               "brings their KV back: recompute, spill (the disk).",
                               {{"level", level}});
  };
  preempted_to_recompute = preempted("recompute");
  preempted_to_spill = preempted("spill");
}

void KvMetrics::AddLookupFamilies(metrics::Registry& registry) {
  constexpr std::array<const char*, kNumTiers> kTiers = {"host", "disk"};
  constexpr std::array<const char*, kNumUnits> kUnits = {"tokens", "stripes"};
  constexpr std::array<const char*, 2> kUses = {"prompt", "resume"};
  for (size_t tier = 0; tier < kTiers.size(); ++tier) {
    for (size_t unit = 0; unit < kUnits.size(); ++unit) {
      for (size_t use = 0; use < kUses.size(); ++use) {
        const Labels labels = {{"tier", kTiers[tier]}, {"unit", kUnits[unit]}, {"use", kUses[use]}};
        lookups_[tier][unit][use] = {
            registry.AddCounter("spindle_kv_prefix_lookups_total",
                                "Looked up in a tier of the prefix cache; hits + misses.",
                                labels),
            registry.AddCounter(
                "spindle_kv_prefix_hits_total", "Found in a tier of the prefix cache.", labels),
            registry.AddCounter("spindle_kv_prefix_misses_total",
                                "Not found in a tier of the prefix cache.",
                                labels)};
      }
    }
  }
}

void KvMetrics::AddByteFamilies(metrics::Registry& registry) {
  constexpr std::array<const char*, kNumTiers> kTiers = {"host", "disk"};
  for (size_t tier = 0; tier < kTiers.size(); ++tier) {
    const auto used = [&](const char* state) {
      return registry.AddGauge("spindle_kv_used_bytes",
                               "KV bytes that a tier holds, by what for.",
                               {{"tier", kTiers[tier]}, {"state", state}});
    };
    bytes_[tier] = {registry.AddGauge("spindle_kv_capacity_bytes",
                                      "KV bytes that a tier may hold.",
                                      {{"tier", kTiers[tier]}}),
                    used("live"),
                    used("cached"),
                    used("pinned"),
                    used("inflight")};
  }
}

void KvMetrics::AddDiskFamilies(metrics::Registry& registry) {
  const auto skipped = [&registry](std::string_view cause) {
    return registry.AddCounter("spindle_kv_stores_skipped_total",
                               "What was not written to disk: prefixes that came once (reuse) or "
                               "found the queue full (queue), and single records.",
                               {{"cause", std::string(cause)}});
  };
  gated_.counter = skipped("reuse");
  dropped_.counter = skipped("queue");
  for (size_t cause = 0; cause < skips_.size(); ++cause) {
    skips_[cause].counter = skipped(StoreSkipName(static_cast<StoreSkip>(cause)));
  }
  for (size_t cause = 0; cause < failures_.size(); ++cause) {
    failures_[cause].counter = registry.AddCounter(
        "spindle_kv_load_failures_total",
        "Records that could not be loaded from disk.",
        {{"cause", std::string(LoadFailureName(static_cast<LoadFailure>(cause)))}});
  }
  lost_stripes_.counter = registry.AddCounter("spindle_kv_lost_stripes_total",
                                              "Records dropped because they could not be read.");
  for (const TierState state : kStates) {
    disk_state_[static_cast<size_t>(state)] =
        registry.AddGauge("spindle_kv_disk_state",
                          "1 for the state that the disk tier is in.",
                          {{"state", std::string(StateName(state))}});
  }
  disk_state_[static_cast<size_t>(TierState::kOff)].Set(1);
  direct_ = registry.AddGauge("spindle_kv_disk_direct_io",
                              "1 when the disk tier goes past the page cache.");
  io_depth_ = registry.AddGauge("spindle_kv_disk_io_depth", "Transfers of the disk tier running.");
}

void KvMetrics::AddDeviceFamilies(metrics::Registry& registry) {
  for (size_t error = 0; error < errors_.size(); ++error) {
    const auto kind = static_cast<DeviceError>(error);
    errors_[error].counter = registry.AddCounter(
        "spindle_kv_disk_errors_total",
        "Failed disk operations, each once, whoever waited for it.",
        {{"op", std::string(DeviceErrorOp(kind))}, {"cause", std::string(DeviceErrorCause(kind))}});
  }
  const auto short_transfers = [&registry](const char* op) {
    return registry.AddCounter(
        "spindle_kv_disk_short_transfers_total",
        "Times that the disk transferred a part, and was asked for the rest.",
        {{"op", op}});
  };
  short_reads_.counter = short_transfers("read");
  short_writes_.counter = short_transfers("write");
  outages_.counter = registry.AddCounter("spindle_kv_disk_outages_total",
                                         "Times that errors switched the disk tier off.");
  recoveries_.counter = registry.AddCounter("spindle_kv_disk_recoveries_total",
                                            "Times that a probe switched it on again.");
}

void KvMetrics::Lookups::Count(uint64_t asked, uint64_t found) const {
  lookups.Add(static_cast<double>(asked));
  hits.Add(static_cast<double>(found));
  misses.Add(static_cast<double>(asked - found));
}

void KvMetrics::CountLookup(const PrefixLookup& lookup) const {
  const size_t use = lookup.resumes ? 1 : 0;
  const uint64_t host_tokens = uint64_t{lookup.host_stripes} * kStripeTokens;
  lookups_[kHost][kTokens][use].Count(lookup.num_tokens, host_tokens);
  lookups_[kHost][kStripes][use].Count(lookup.num_stripes, lookup.host_stripes);
  if (lookup.has_disk) {
    lookups_[kDisk][kTokens][use].Count(lookup.num_tokens - host_tokens,
                                        uint64_t{lookup.disk_stripes} * kStripeTokens);
    lookups_[kDisk][kStripes][use].Count(lookup.num_stripes - lookup.host_stripes,
                                         lookup.disk_stripes);
  }
}

PrefixTotals KvMetrics::Totals() const {
  const auto sum = [this](Tier tier) {
    PrefixTotals::Tier total;
    for (const Lookups& counters : lookups_[tier][kTokens]) {
      // Hits first: a lookup counted in between may only look like a miss.
      total.hit_tokens += AsCount(counters.hits);
      total.lookup_tokens += AsCount(counters.lookups);
    }
    return total;
  };
  return {.host = sum(kHost), .disk = sum(kDisk)};
}

void KvMetrics::PublishHost(const kv::KvStats& host) {
  const auto bytes = [&host](uint64_t stripes) {
    return static_cast<double>(stripes * host.stripe_bytes);
  };
  stripe_bytes_ = host.stripe_bytes;
  bytes_[kHost].capacity.Set(bytes(host.capacity_stripes));
  bytes_[kHost].live.Set(bytes(host.owned_stripes));
  bytes_[kHost].cached.Set(bytes(host.cached_stripes));
}

void KvMetrics::PublishDisk(const kv::DiskTierStats& stats) {
  const kv::disk::DiskStats& disk = stats.disk;
  bytes_[kDisk].capacity.Set(static_cast<double>(disk.capacity_bytes));
  bytes_[kDisk].live.Set(static_cast<double>(disk.live_bytes));
  bytes_[kDisk].inflight.Set(static_cast<double>(disk.store_bytes_pending));
  bytes_[kHost].pinned.Set(static_cast<double>(disk.store_bytes_pending));
  bytes_[kHost].inflight.Set(static_cast<double>(disk.loads_pending * stripe_bytes_));
  gated_.Follow(stats.stores_gated);
  dropped_.Follow(stats.stores_dropped);
  for (size_t cause = 0; cause < skips_.size(); ++cause) {
    skips_[cause].Follow(disk.stores_skipped[cause]);
  }
  for (size_t cause = 0; cause < failures_.size(); ++cause) {
    failures_[cause].Follow(disk.load_failures[cause]);
  }
  not_loaded_tokens_.Follow(stats.lost_tokens);
  lost_stripes_.Follow(disk.tombstones + disk.recovery_dropped);
  for (const TierState state : kStates) {
    disk_state_[static_cast<size_t>(state)].Set(state == disk.state ? 1 : 0);
  }
  for (size_t error = 0; error < errors_.size(); ++error) {
    errors_[error].Follow(disk.device_errors[error]);
  }
  short_reads_.Follow(disk.short_reads);
  short_writes_.Follow(disk.short_writes);
  outages_.Follow(disk.outages);
  recoveries_.Follow(disk.recoveries);
  direct_.Set(disk.direct_active ? 1 : 0);
  io_depth_.Set(disk.io_depth);
}

}  // namespace spindle::engine
