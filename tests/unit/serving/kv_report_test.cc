#include "serving/kv_report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spindle::serving {
namespace {

using nlohmann::json;

// 2 layers of one head of 16: a stripe has 8 KiB and four pages.
constexpr kv::KvGeometry kGeometry{
    .num_layers = 2, .num_kv_heads = 1, .head_dim = 16, .type = DType::kBF16};

engine::EngineLoad HostLoad() {
  engine::EngineLoad load{};
  load.kv.capacity_stripes = 100;
  load.kv.owned_stripes = 10;
  load.kv.cached_stripes = 30;
  load.kv.free_stripes = 60;
  load.kv.stripe_bytes = kGeometry.stripe_bytes();
  load.kv.prefix_entries = 35;
  load.kv.prefix_evictions = 2;
  load.prefix.host = {.lookup_tokens = 1000, .hit_tokens = 640};
  return load;
}

TEST(KvReport, TheFastTierComesFirst) {
  engine::EngineLoad load = HostLoad();
  load.fast = {.capacity_bytes = 1000, .free_bytes = 300, .is_emulated = true};
  load.fast->counters.page_hits = 5;
  load.fast->counters.stall_ns = 2'500'000;
  const json report = json::parse(KvReportJson(load, kGeometry));
  ASSERT_EQ(report["tiers"].size(), 2U);
  const json& fast = report["tiers"][0];
  EXPECT_EQ(fast["name"], "fast");
  EXPECT_EQ(fast["mode"], "emulated-link");
  EXPECT_EQ(fast["used_bytes"]["live"], 700);
  EXPECT_EQ(fast["page_hits"], 5);
  EXPECT_EQ(fast["stall_ms"], 2);
}

TEST(KvReport, TheHostTierByState) {
  const json report = json::parse(KvReportJson(HostLoad(), kGeometry));
  ASSERT_EQ(report["tiers"].size(), 1U) << "no disk tier, no entry";
  const json& host = report["tiers"][0];
  EXPECT_EQ(host["name"], "host");
  EXPECT_EQ(host["capacity_bytes"], 100 * 8192);
  EXPECT_EQ(host["used_bytes"]["live"], 10 * 8192);
  EXPECT_EQ(host["used_bytes"]["cached"], 30 * 8192);
  EXPECT_EQ(host["used_bytes"]["pinned"], 0);
  EXPECT_EQ(host["free_bytes"], 60 * 8192);
  EXPECT_EQ(host["pages"], 400);
  EXPECT_EQ(host["evicted_pages"], 8);
  EXPECT_EQ(host["lookups"], json::parse(R"({"tokens":1000,"hit_tokens":640,"miss_tokens":360})"));
  EXPECT_EQ(report["prefix_cache_entries"], 35);
  EXPECT_EQ(report["page_tokens"], kGeometry.page_tokens());
}

TEST(KvReport, TheDiskTierWithStateQuotaAndCauses) {
  engine::EngineLoad load = HostLoad();
  load.disk.emplace();
  load.disk->stores_gated = 3;
  load.disk->stores_dropped = 4;
  load.disk->loads = 5;
  load.disk->loads_cut = 1;
  load.disk->lost_tokens = 128;
  load.disk->load_bytes_per_second = 1e9;
  kv::disk::DiskStats& disk = load.disk->disk;
  disk.state = kv::disk::TierState::kReadOnly;
  disk.ring_active = true;
  disk.direct_active = true;
  disk.capacity_bytes = 1 << 30;
  disk.live_bytes = 1 << 20;
  disk.store_bytes_pending = 3 * 8192;
  disk.loads_pending = 2;
  disk.stores_skipped[static_cast<size_t>(kv::disk::StoreSkip::kNoSpace)] = 7;
  disk.outages = 2;
  disk.recoveries = 1;
  disk.device_errors[static_cast<size_t>(kv::disk::DeviceError::kReadDamage)] = 12;
  disk.device_errors[static_cast<size_t>(kv::disk::DeviceError::kWriteFull)] = 13;
  disk.short_reads = 14;
  disk.load_failures[static_cast<size_t>(kv::disk::LoadFailure::kPayload)] = 9;
  disk.loads[kv::disk::KindIdx(kv::disk::RecordKind::kStripe)] = 11;
  load.prefix.disk = {.lookup_tokens = 360, .hit_tokens = 128};
  const json report = json::parse(KvReportJson(load, kGeometry));
  ASSERT_EQ(report["tiers"].size(), 2U);
  const json& tier = report["tiers"][1];
  EXPECT_EQ(tier["name"], "disk");
  EXPECT_EQ(tier["state"], "readonly");
  EXPECT_EQ(tier["io_mode"], "io_uring");
  EXPECT_EQ(tier["direct_io"], true);
  EXPECT_EQ(tier["capacity_bytes"], 1 << 30);
  EXPECT_EQ(tier["used_bytes"]["live"], 1 << 20);
  EXPECT_EQ(tier["used_bytes"]["inflight"], 3 * 8192);
  EXPECT_EQ(tier["outages"], 2);
  EXPECT_EQ(tier["recoveries"], 1);
  EXPECT_EQ(tier["errors"]["read"], json::parse(R"({"io":0,"damage":12})"));
  EXPECT_EQ(tier["errors"]["write"], json::parse(R"({"io":0,"nospace":13})"));
  EXPECT_EQ(tier["errors"]["probe"]["io"], 0);
  EXPECT_EQ(tier["short_transfers"], json::parse(R"({"read":14,"write":0})"));
  EXPECT_EQ(tier["lookups"]["miss_tokens"], 360 - 128);
  EXPECT_EQ(tier["loads"]["stripes"], 11);
  EXPECT_EQ(tier["loads"]["prefixes"], 5);
  EXPECT_EQ(tier["loads"]["prefixes_cut"], 1);
  EXPECT_EQ(tier["loads"]["lost_tokens"], 128);
  EXPECT_EQ(tier["loads"]["failures"]["payload"], 9);
  EXPECT_EQ(tier["loads"]["failures"].size(), kv::disk::kNumLoadFailures);
  EXPECT_EQ(tier["stores"]["skipped"]["nospace"], 7);
  EXPECT_EQ(tier["stores"]["skipped"]["reuse"], 3);
  EXPECT_EQ(tier["stores"]["skipped"]["queue"], 4);
  const json& host = report["tiers"][0];
  EXPECT_EQ(host["used_bytes"]["pinned"], 3 * 8192);
  EXPECT_EQ(host["used_bytes"]["inflight"], 2 * 8192);
}

}  // namespace
}  // namespace spindle::serving
