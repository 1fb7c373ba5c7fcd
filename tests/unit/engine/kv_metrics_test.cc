// The metric families of the KV tiers, moved by requests over a host tier and a disk tier.
#include "engine/kv_metrics.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/engine_world.h"
#include "support/temp_folder.h"

namespace spindle::engine {
namespace {

using testing::Client;
using testing::EngineWorld;
using testing::MakePrompt;
using testing::MakeRequest;

class KvMetricsTest : public ::testing::Test {
 protected:
  std::unique_ptr<EngineWorld> Start(uint64_t num_stripes = 256) {
    EngineWorld::Options options;
    options.num_stripes = num_stripes;
    options.disk = kv::disk::DiskOptions{};
    options.disk->path = folder_.path();
    options.disk->capacity_bytes = uint64_t{256} << 20;
    options.disk->segment_bytes = uint64_t{1} << 20;
    options.disk->min_free_bytes = 0;
    options.disk->min_free_fraction = 0;
    options.disk->io_mode = kv::disk::IoMode::kInline;
    options.files = &kv::disk::SystemFiles();
    return std::make_unique<EngineWorld>(options);
  }

  static void Settle(EngineWorld& world) {
    for (int step = 0; step < 1000 && world.disk->HoldsHostStripes(); ++step) {
      world.core.Step();
    }
    world.core.Step();
  }

  static void Stop(std::unique_ptr<EngineWorld> world) {
    Settle(*world);
    world->CloseDisk();
  }

  static RequestStats Ask(EngineWorld& world, const std::vector<TokenId>& prompt) {
    auto client = world.Submit(MakeRequest(prompt, 4));
    for (int step = 0; step < 100000 && !client->received.done.has_value(); ++step) {
      world.core.Step();
      client->Read();
    }
    EXPECT_TRUE(client->received.done.has_value());
    return client->received.done->stats;
  }

  test::TempFolder folder_;
};

// Sum over the series of `name` that have all of `labels`; -1 when there is none.
double Value(EngineWorld& world,
             const std::string& name,
             const std::vector<std::string>& labels = {}) {
  std::istringstream text(world.registry.Expose(false));
  std::string line;
  double sum = -1.0;
  while (std::getline(text, line)) {
    bool matches = line.substr(0, line.find('{')) == name;
    for (const std::string& label : labels) {
      matches = matches && line.find(label) != std::string::npos;
    }
    if (matches) {
      sum = std::max(sum, 0.0) + std::stod(line.substr(line.rfind(' ') + 1));
    }
  }
  return sum;
}

void ExpectHitsAndMissesAreLookups(EngineWorld& world) {
  for (const char* tier : {"tier=\"host\"", "tier=\"disk\""}) {
    for (const char* unit : {"unit=\"tokens\"", "unit=\"stripes\""}) {
      for (const char* use : {"use=\"prompt\"", "use=\"resume\""}) {
        EXPECT_EQ(Value(world, "spindle_kv_prefix_hits_total", {tier, unit, use}) +
                      Value(world, "spindle_kv_prefix_misses_total", {tier, unit, use}),
                  Value(world, "spindle_kv_prefix_lookups_total", {tier, unit, use}))
            << tier << unit << use;
      }
    }
  }
}

TEST(KvMetricsOfAHost, EveryFamilyExistsWithoutADisk) {
  EngineWorld world({});
  for (const char* name : {"spindle_kv_prefix_lookups_total",
                           "spindle_kv_prefix_hits_total",
                           "spindle_kv_prefix_misses_total",
                           "spindle_kv_used_bytes",
                           "spindle_kv_stores_skipped_total",
                           "spindle_kv_load_failures_total",
                           "spindle_kv_lost_stripes_total",
                           "spindle_kv_recomputed_tokens_total",
                           "spindle_kv_preemptions_total",
                           "spindle_kv_disk_errors_total",
                           "spindle_kv_disk_short_transfers_total",
                           "spindle_kv_disk_outages_total",
                           "spindle_kv_disk_recoveries_total",
                           "spindle_kv_disk_direct_io",
                           "spindle_kv_disk_io_depth"}) {
    EXPECT_EQ(Value(world, name), 0.0) << name;
  }
  EXPECT_EQ(Value(world, "spindle_kv_disk_state", {"state=\"off\""}), 1.0);
  EXPECT_EQ(Value(world, "spindle_kv_disk_state"), 1.0) << "one state at a time";
  EXPECT_EQ(Value(world, "spindle_kv_capacity_bytes", {"tier=\"host\""}), 256.0 * 16384);
  EXPECT_EQ(Value(world, "spindle_kv_capacity_bytes", {"tier=\"disk\""}), 0.0);
}

TEST(KvMetricsOfAHost, PreemptionCountsWhatIsComputedAgain) {
  EngineWorld::Options options;
  options.num_stripes = 16;
  EngineWorld world(options);
  EngineRequest request = MakeRequest(MakePrompt(60, 1), 600);
  request.sampling.ignore_eos = true;
  auto first = world.Submit(request);
  request.prompt = MakePrompt(60, 2);
  auto second = world.Submit(request);
  world.RunUntilIdle(first, second);
  ASSERT_GT(first->received.done->stats.preemptions + second->received.done->stats.preemptions, 0U);
  EXPECT_EQ(Value(world, "spindle_kv_preemptions_total", {"level=\"recompute\""}),
            Value(world, "vllm:num_preemptions_total"));
  EXPECT_GT(Value(world, "spindle_kv_recomputed_tokens_total", {"cause=\"preempt\""}), 0.0);
  EXPECT_GT(Value(world, "spindle_kv_prefix_lookups_total", {"use=\"resume\""}), 0.0);
  ExpectHitsAndMissesAreLookups(world);
}

TEST_F(KvMetricsTest, LookupsAreCountedWhereTheyFound) {
  const std::vector<TokenId> prompt = MakePrompt(1500, 1);  // 23 full stripes
  auto world = Start();
  Ask(*world, prompt);
  EXPECT_EQ(Value(*world, "spindle_kv_prefix_misses_total", {"host", "tokens"}), 1500.0);
  EXPECT_EQ(Value(*world, "spindle_kv_prefix_misses_total", {"host", "stripes"}), 23.0);
  EXPECT_EQ(Value(*world, "spindle_kv_prefix_lookups_total", {"disk", "tokens"}), 1500.0);
  EXPECT_EQ(Value(*world, "spindle_kv_prefix_hits_total"), 0.0);
  Ask(*world, prompt);
  EXPECT_EQ(Value(*world, "spindle_kv_prefix_hits_total", {"host", "stripes"}), 23.0);
  EXPECT_EQ(Value(*world, "spindle_kv_prefix_hits_total", {"host", "tokens"}), 23.0 * 64);
  EXPECT_EQ(Value(*world, "vllm:prefix_cache_hits_total"), 23.0 * 64);
  ExpectHitsAndMissesAreLookups(*world);
  const PrefixTotals totals = world->core.Load().prefix;
  EXPECT_EQ(totals.host.lookup_tokens, 3000U);
  EXPECT_EQ(totals.host.hit_tokens, 23U * 64);
  EXPECT_EQ(totals.host.miss_tokens(), 3000U - 23 * 64);
  Stop(std::move(world));

  world = Start();
  const RequestStats stats = Ask(*world, prompt);
  EXPECT_EQ(Value(*world, "spindle_kv_prefix_hits_total", {"host"}), 0.0);
  EXPECT_EQ(Value(*world, "spindle_kv_prefix_hits_total", {"disk", "stripes"}), 23.0);
  EXPECT_EQ(Value(*world, "vllm:prefix_cache_hits_total"), 0.0);
  EXPECT_EQ(Value(*world, "vllm:external_prefix_cache_queries_total"), 1500.0);
  EXPECT_EQ(Value(*world, "vllm:external_prefix_cache_hits_total"), 23.0 * 64);
  ExpectHitsAndMissesAreLookups(*world);
  EXPECT_EQ(stats.cached_tokens, 23U * 64);
  EXPECT_EQ(stats.disk_tokens, 23U * 64);
  EXPECT_EQ(stats.kv.disk_bytes, 23U * 16384);
  EXPECT_EQ(stats.kv.bytes, 24U * 16384);
  EXPECT_EQ(stats.kv.pages, 24U * 8);
  EXPECT_LE(stats.load_time, stats.queue_time);
  EXPECT_EQ(Value(*world, "spindle_kv_fetch_seconds_count", {"from=\"disk\""}), 1.0);
  Stop(std::move(world));
}

TEST_F(KvMetricsTest, BytesThatMoveAndBytesThatAreHeld) {
  auto world = Start();
  Ask(*world, MakePrompt(1500, 1));
  Settle(*world);
  EXPECT_EQ(Value(*world, "spindle_kv_move_bytes_total", {"from=\"host\"", "to=\"disk\""}),
            23.0 * 16384);
  EXPECT_GE(Value(*world, "spindle_kv_used_bytes", {"disk", "live"}), 23.0 * 16384);
  EXPECT_EQ(Value(*world, "spindle_kv_used_bytes", {"host", "cached"}), 23.0 * 16384);
  EXPECT_EQ(Value(*world, "spindle_kv_used_bytes", {"host", "live"}), 0.0);
  EXPECT_EQ(Value(*world, "spindle_kv_used_bytes", {"pinned"}), 0.0);
  EXPECT_EQ(Value(*world, "spindle_kv_capacity_bytes", {"disk"}), 256.0 * 1048576);
  EXPECT_EQ(Value(*world, "spindle_kv_disk_state", {"state=\"ok\""}), 1.0);
  EXPECT_EQ(Value(*world, "spindle_kv_disk_state"), 1.0);
  const auto disk = world->core.Load().disk;
  ASSERT_TRUE(disk.has_value());
  EXPECT_EQ(Value(*world, "spindle_kv_disk_direct_io"), disk->disk.direct_active ? 1.0 : 0.0);
  Stop(std::move(world));

  world = Start();
  Ask(*world, MakePrompt(1500, 1));
  Settle(*world);
  EXPECT_EQ(Value(*world, "spindle_kv_move_bytes_total", {"from=\"disk\"", "to=\"host\""}),
            23.0 * 16384);
  Stop(std::move(world));
}

TEST(KvMetricsOfAHost, StatisticsOfTheDiskAreShownAsTheyAre) {
  EngineWorld world({});
  kv::DiskTierStats stats;
  stats.stores_dropped = 3;
  stats.disk.state = kv::disk::TierState::kDegraded;
  stats.disk.direct_active = true;
  stats.disk.io_depth = 5;
  stats.disk.store_bytes_pending = 2 * 16384;
  stats.disk.loads_pending = 4;
  stats.disk.collected_records = 6;
  stats.disk.stores_skipped[static_cast<size_t>(kv::disk::StoreSkip::kNoSpace)] = 7;
  stats.disk.stores_skipped[static_cast<size_t>(kv::disk::StoreSkip::kBackpressure)] = 8;
  stats.disk.load_failures[static_cast<size_t>(kv::disk::LoadFailure::kDeadline)] = 9;
  stats.disk.device_errors[static_cast<size_t>(kv::disk::DeviceError::kReadDamage)] = 10;
  stats.disk.device_errors[static_cast<size_t>(kv::disk::DeviceError::kProbe)] = 11;
  stats.disk.short_writes = 12;
  stats.disk.outages = 13;
  stats.disk.recoveries = 14;
  for (int round = 0; round < 2; ++round) {  // totals, not increments
    world.metrics.PublishDisk(stats);
    EXPECT_EQ(Value(world, "spindle_kv_used_bytes", {"host", "pinned"}), 2.0 * 16384);
    EXPECT_EQ(Value(world, "spindle_kv_used_bytes", {"host", "inflight"}), 4.0 * 16384);
    EXPECT_EQ(Value(world, "spindle_kv_used_bytes", {"disk", "inflight"}), 2.0 * 16384);
    EXPECT_EQ(Value(world, "spindle_kv_stores_skipped_total", {"cause=\"queue\""}), 3.0);
    EXPECT_EQ(Value(world, "spindle_kv_stores_skipped_total", {"cause=\"nospace\""}), 7.0);
    EXPECT_EQ(Value(world, "spindle_kv_stores_skipped_total", {"cause=\"backpressure\""}), 8.0);
    EXPECT_EQ(Value(world, "spindle_kv_load_failures_total", {"cause=\"deadline\""}), 9.0);
    EXPECT_EQ(Value(world, "spindle_kv_evictions_total", {"disk", "cause=\"gc\""}), 6.0 * 8);
    EXPECT_EQ(Value(world, "spindle_kv_disk_state", {"state=\"degraded\""}), 1.0);
    EXPECT_EQ(Value(world, "spindle_kv_disk_state"), 1.0);
    EXPECT_EQ(Value(world, "spindle_kv_disk_errors_total"), 21.0);
    EXPECT_EQ(Value(world, "spindle_kv_disk_errors_total", {"op=\"read\"", "cause=\"damage\""}),
              10.0);
    EXPECT_EQ(Value(world, "spindle_kv_disk_errors_total", {"op=\"probe\""}), 11.0);
    EXPECT_EQ(Value(world, "spindle_kv_disk_short_transfers_total", {"op=\"write\""}), 12.0);
    EXPECT_EQ(Value(world, "spindle_kv_disk_outages_total"), 13.0);
    EXPECT_EQ(Value(world, "spindle_kv_disk_recoveries_total"), 14.0);
    EXPECT_EQ(Value(world, "spindle_kv_disk_direct_io"), 1.0);
    EXPECT_EQ(Value(world, "spindle_kv_disk_io_depth"), 5.0);
  }
}

TEST_F(KvMetricsTest, SkippedStoresByCause) {
  auto world = Start();
  Ask(*world, MakePrompt(300, 3));
  Settle(*world);
  EXPECT_GT(Value(*world, "spindle_kv_stores_skipped_total", {"cause=\"reuse\""}), 0.0);
  EXPECT_EQ(Value(*world, "spindle_kv_stores_skipped_total", {"cause=\"nospace\""}), 0.0);
  Stop(std::move(world));
}

TEST_F(KvMetricsTest, EvictionsByTierAndCause) {
  auto world = Start(/*num_stripes=*/40);
  for (uint64_t seed = 10; seed < 14; ++seed) {
    Ask(*world, MakePrompt(1400, seed));
    Settle(*world);
  }
  EXPECT_GT(Value(*world, "spindle_kv_evictions_total", {"host", "cause=\"capacity\""}), 0.0);
  EXPECT_EQ(Value(*world, "spindle_kv_evictions_total", {"disk"}), 0.0);
  Stop(std::move(world));
}

TEST_F(KvMetricsTest, DamageIsCountedByCauseAndRecomputed) {
  const std::vector<TokenId> prompt = MakePrompt(3000, 6);
  auto world = Start();
  Ask(*world, prompt);
  Stop(std::move(world));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
    if (entry.path().extension() == ".kv") {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
      file.seekg(middle);
      const int byte = file.get();
      file.seekp(middle);
      file.put(static_cast<char>(byte ^ 0x10));
    }
  }

  world = Start();
  const RequestStats stats = Ask(*world, prompt);
  Settle(*world);
  EXPECT_LT(stats.disk_tokens, 2944U);
  const double failures = Value(*world, "spindle_kv_load_failures_total", {"cause=\"payload\""}) +
                          Value(*world, "spindle_kv_load_failures_total", {"cause=\"header\""});
  EXPECT_GT(failures, 0.0);
  EXPECT_EQ(Value(*world, "spindle_kv_lost_stripes_total"), failures);
  EXPECT_GT(Value(*world, "spindle_kv_evictions_total", {"disk", "cause=\"corrupt\""}), 0.0);
  EXPECT_EQ(Value(*world, "spindle_kv_recomputed_tokens_total", {"cause=\"load\""}),
            2944.0 - stats.disk_tokens);
  ExpectHitsAndMissesAreLookups(*world);
  Stop(std::move(world));
}

}  // namespace
}  // namespace spindle::engine
