#include "serving/kv_report.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace spindle::serving {
namespace {

using nlohmann::ordered_json;

uint64_t PagesPerStripe(const kv::KvGeometry& geometry) {
  return geometry.stripe_bytes() / geometry.page_bytes();
}

ordered_json Lookups(const engine::PrefixTotals::Tier& totals) {
  return {{"tokens", totals.lookup_tokens},
          {"hit_tokens", totals.hit_tokens},
          {"miss_tokens", totals.miss_tokens()}};
}

ordered_json FastTier(const engine::FastLoad& fast) {
  const auto& counters = fast.counters;
  const uint64_t taken = fast.capacity_bytes - fast.free_bytes;
  ordered_json tier;
  tier["name"] = "fast";
  tier["mode"] = fast.is_emulated ? "emulated-link" : "mirror";
  tier["capacity_bytes"] = fast.capacity_bytes;
  tier["free_bytes"] = fast.free_bytes;
  tier["index_bytes"] = fast.index_bytes;
  tier["used_bytes"] = {{"live", taken - std::min(taken, fast.index_bytes)},
                        {"cached", 0},
                        {"pinned", 0},
                        {"inflight", 0}};
  tier["page_hits"] = counters.page_hits;
  tier["page_misses"] = counters.page_misses;
  tier["pages_streamed"] = counters.pages_streamed;
  tier["refaults"] = counters.page_refaults;
  tier["copied_bytes"] = counters.bytes_copied;
  tier["multi_pass_heads"] = counters.multi_pass_heads;
  tier["stall_ms"] = counters.stall_ns / 1'000'000;
  return tier;
}

ordered_json HostTier(const engine::EngineLoad& load, const kv::KvGeometry& geometry) {
  const kv::KvStats& stats = load.kv;
  const auto bytes = [&stats](uint64_t stripes) { return stripes * stats.stripe_bytes; };
  const uint64_t pinned = load.disk.has_value() ? load.disk->disk.store_bytes_pending : 0;
  const uint64_t inflight = load.disk.has_value() ? bytes(load.disk->disk.loads_pending) : 0;
  ordered_json tier;
  tier["name"] = "host";
  tier["capacity_bytes"] = bytes(stats.capacity_stripes);
  tier["committed_bytes"] = bytes(stats.owned_stripes);
  tier["prefix_bytes"] = bytes(stats.cached_stripes);
  tier["free_bytes"] = bytes(stats.free_stripes);
  tier["used_bytes"] = {{"live", bytes(stats.owned_stripes)},
                        {"cached", bytes(stats.cached_stripes)},
                        {"pinned", pinned},
                        {"inflight", inflight}};
  tier["resident_bytes"] = stats.committed_bytes;
  tier["pages"] = stats.capacity_stripes * PagesPerStripe(geometry);
  tier["prefix_cache_entries"] = stats.prefix_entries;
  tier["evicted_pages"] = stats.prefix_evictions * PagesPerStripe(geometry);
  tier["lookups"] = Lookups(load.prefix.host);
  return tier;
}

ordered_json Stores(const kv::DiskTierStats& stats) {
  using kv::disk::StoreSkip;
  const size_t kind = kv::disk::KindIdx(kv::disk::RecordKind::kStripe);
  ordered_json skipped = {{"reuse", stats.stores_gated}, {"queue", stats.stores_dropped}};
  for (size_t cause = 0; cause < kv::disk::kNumStoreSkips; ++cause) {
    skipped[std::string(StoreSkipName(static_cast<StoreSkip>(cause)))] =
        stats.disk.stores_skipped[cause];
  }
  return {{"stripes", stats.disk.stores[kind]},
          {"bytes", stats.disk.stored_bytes[kind]},
          {"pending", stats.disk.stores_pending},
          {"pending_bytes", stats.disk.store_bytes_pending},
          {"skipped", std::move(skipped)}};
}

ordered_json Loads(const kv::DiskTierStats& stats) {
  using kv::disk::LoadFailure;
  const size_t kind = kv::disk::KindIdx(kv::disk::RecordKind::kStripe);
  ordered_json failures = ordered_json::object();
  for (size_t cause = 0; cause < kv::disk::kNumLoadFailures; ++cause) {
    failures[std::string(LoadFailureName(static_cast<LoadFailure>(cause)))] =
        stats.disk.load_failures[cause];
  }
  return {{"stripes", stats.disk.loads[kind]},
          {"bytes", stats.disk.loaded_bytes[kind]},
          {"pending", stats.disk.loads_pending},
          {"prefixes", stats.loads},
          {"prefixes_cut", stats.loads_cut},
          {"lost_tokens", stats.lost_tokens},
          {"bytes_per_second", static_cast<uint64_t>(stats.load_bytes_per_second)},
          {"failures", std::move(failures)}};
}

ordered_json DeviceErrors(const kv::disk::DiskStats& disk) {
  using kv::disk::DeviceError;
  ordered_json errors = ordered_json::object();
  for (size_t error = 0; error < kv::disk::kNumDeviceErrors; ++error) {
    const auto kind = static_cast<DeviceError>(error);
    errors[std::string(DeviceErrorOp(kind))][std::string(DeviceErrorCause(kind))] =
        disk.device_errors[error];
  }
  return errors;
}

ordered_json DiskTier(const engine::EngineLoad& load) {
  const kv::DiskTierStats& stats = *load.disk;
  const kv::disk::DiskStats& disk = stats.disk;
  ordered_json tier;
  tier["name"] = "disk";
  tier["state"] = std::string(StateName(disk.state));
  tier["outages"] = disk.outages;
  tier["recoveries"] = disk.recoveries;
  tier["errors"] = DeviceErrors(disk);
  tier["short_transfers"] = {{"read", disk.short_reads}, {"write", disk.short_writes}};
  tier["io_mode"] = disk.ring_active ? "io_uring" : "threads";
  tier["direct_io"] = disk.direct_active;
  tier["capacity_bytes"] = disk.capacity_bytes;
  tier["used_bytes"] = {{"live", disk.live_bytes},
                        {"cached", 0},
                        {"pinned", 0},
                        {"inflight", disk.store_bytes_pending}};
  tier["file_bytes"] = disk.used_bytes;
  tier["allocated_bytes"] = disk.allocated_bytes;
  tier["other_stores_bytes"] = disk.other_bytes;
  tier["file_system_free_bytes"] = disk.free_bytes;
  tier["metadata_bytes"] = disk.index_bytes;
  tier["records"] = disk.entries;
  tier["segments"] = disk.segments;
  tier["collected_records"] = disk.collected_records;
  tier["corrupt_records"] = disk.tombstones;
  tier["lookups"] = Lookups(load.prefix.disk);
  tier["loads"] = Loads(stats);
  tier["stores"] = Stores(stats);
  return tier;
}

}  // namespace

std::string KvReportJson(const engine::EngineLoad& load, const kv::KvGeometry& geometry) {
  ordered_json report;
  report["page_tokens"] = geometry.page_tokens();
  report["stripe_bytes"] = geometry.stripe_bytes();
  report["prefix_cache_entries"] = load.kv.prefix_entries;
  report["tiers"] = ordered_json::array();
  if (load.fast.has_value()) {
    report["tiers"].push_back(FastTier(*load.fast));
  }
  report["tiers"].push_back(HostTier(load, geometry));
  if (load.disk.has_value()) {
    report["tiers"].push_back(DiskTier(load));
  }
  return report.dump();
}

}  // namespace spindle::serving
