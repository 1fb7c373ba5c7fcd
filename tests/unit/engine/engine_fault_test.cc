// Many short requests over a disk tier whose files fail from a seed. Every answer is that of an
// engine without a disk (the fake forward pass reads its whole history back from the KV store, so a
// wrong stripe changes it), the disk is of use all the same, and every injected fault is counted.
#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/engine_world.h"
#include "support/fault_files.h"
#include "support/memory_files.h"
#include "support/random_seed.h"

namespace spindle::engine {
namespace {

using kv::disk::DeviceError;
using kv::disk::DiskStats;
using kv::disk::TierState;
using test::FaultCounts;
using test::FaultFiles;
using test::FaultRates;
using test::FileClass;
using test::MemoryFiles;
using testing::Client;
using testing::EngineWorld;
using testing::ExpectedTokens;
using testing::MakePrompt;
using testing::MakeRequest;

// The whole test runs with the slow ones.
#ifdef SPINDLE_FAULT_SLOW_TESTS
constexpr uint32_t kNumPrompts = 10000;
#else
constexpr uint32_t kNumPrompts = 1000;
#endif

constexpr uint32_t kAnswerTokens = 8;
constexpr uint32_t kHeadTokens = 256;
constexpr uint32_t kNumHeads = 24;       // in use at a time: more than the host tier holds
constexpr uint32_t kPromptsPerHead = 6;  // one of them goes, and a new one comes, after so many
constexpr uint64_t kHostStripes = 48;
constexpr uint32_t kBatch = 4;
constexpr Duration kThinkTime = std::chrono::milliseconds(200);  // between batches

struct Plan {
  const char* name;
  FaultRates rates;
  bool passes = false;  // hits the second quarter of the prompts only
  bool rare = false;    // may not happen among few prompts
};

void PrintTo(const Plan& plan, std::ostream* out) {
  *out << plan.name;
}

uint64_t Errors(const DiskStats& stats, DeviceError error) {
  return stats.device_errors[static_cast<size_t>(error)];
}

// Servers over one set of files, one after the other, and what they are asked.
class FaultRun {
 public:
  explicit FaultRun(uint64_t disk_bytes) : disk_bytes_(disk_bytes) {}

  std::unique_ptr<EngineWorld> Start() {
    EngineWorld::Options options;
    options.num_stripes = kHostStripes;
    options.disk = kv::disk::DiskOptions{};
    options.disk->path = "/store";
    options.disk->capacity_bytes = disk_bytes_;
    options.disk->segment_bytes = uint64_t{256} << 10;
    options.disk->checkpoint_journal_bytes = uint64_t{64} << 10;
    options.disk->min_free_bytes = 0;
    options.disk->min_free_fraction = 0;
    options.disk->io_mode = kv::disk::IoMode::kInline;
    options.files = &files;
    auto world = std::make_unique<EngineWorld>(options);
    clock_ = &world->clock;
    return world;
  }

  // Asks `kBatch` prompts at a time, and checks the answers.
  void Ask(EngineWorld& world, uint32_t first, uint32_t num_prompts) {
    for (uint32_t begin = first; begin < first + num_prompts; begin += kBatch) {
      std::vector<std::unique_ptr<Client>> clients;
      std::vector<std::vector<TokenId>> expected;
      for (uint32_t i = 0; i < kBatch; ++i) {
        EngineRequest request = MakeRequest(MakeShortPrompt(begin + i), kAnswerTokens);
        expected.push_back(ExpectedTokens(request.prompt, request.sampling, 0));
        clients.push_back(world.Submit(std::move(request)));
        ASSERT_NE(clients.back(), nullptr);
      }
      const auto all_done = [&clients] {
        return std::ranges::all_of(clients, [](const auto& client) {
          client->Read();
          return client->received.done.has_value();
        });
      };
      for (uint64_t step = 0; !all_done(); ++step) {
        ASSERT_LT(step, 100000U) << "a request never ended";
        world.core.Step();
      }
      for (uint32_t i = 0; i < kBatch; ++i) {
        ASSERT_TRUE(clients[i]->received.done->status.ok());
        ASSERT_EQ(clients[i]->received.tokens[0], expected[i]) << "prompt " << begin + i;
      }
      world.clock.Advance(kThinkTime);
    }
  }

  static void Settle(EngineWorld& world) {
    for (int step = 0; step < 1000 && world.disk->HoldsHostStripes(); ++step) {
      world.core.Step();
      world.clock.Advance(kThinkTime);  // stores may wait for room
    }
    EXPECT_FALSE(world.disk->HoldsHostStripes());
    EXPECT_TRUE(world.core.CheckIntegrity().ok()) << world.core.CheckIntegrity();
  }

  // Each fault of a segment's transfers is one count of the store.
  void ExpectAllCounted(const DiskStats& stats) const {
    const FaultCounts faults = files.counts(FileClass::kSegment);
    // A transfer that came in parts four times in a row is an error, too.
    EXPECT_GE(Errors(stats, DeviceError::kRead), faults.read_errors);
    EXPECT_LE(Errors(stats, DeviceError::kRead), faults.read_errors + faults.short_reads / 4);
    EXPECT_GE(Errors(stats, DeviceError::kWrite), faults.write_errors);
    EXPECT_LE(Errors(stats, DeviceError::kWrite), faults.write_errors + faults.short_writes / 4);
    EXPECT_EQ(Errors(stats, DeviceError::kWriteFull), faults.no_space);
    EXPECT_EQ(Errors(stats, DeviceError::kSync), faults.sync_errors);
    EXPECT_EQ(Errors(stats, DeviceError::kUnlink), faults.unlink_errors);
    EXPECT_EQ(stats.short_reads, faults.short_reads);
    EXPECT_EQ(stats.short_writes, faults.short_writes);
    // A read that came in parts may have been damaged twice, or damaged and then failed.
    EXPECT_LE(Errors(stats, DeviceError::kReadDamage), faults.damaged_reads);
    EXPECT_GE(Errors(stats, DeviceError::kReadDamage) + faults.short_reads, faults.damaged_reads);
  }

  MemoryFiles memory;
  FaultFiles files{memory, 17, [this](Duration stall) { clock_->Advance(stall); }};

 private:
  // Prompt `index` of the run: a common beginning, and an end of its own.
  std::vector<TokenId> MakeShortPrompt(uint32_t index) {
    const uint64_t head = index / kPromptsPerHead + random_() % kNumHeads;
    std::vector<TokenId> prompt = MakePrompt(kHeadTokens, head);
    const std::vector<TokenId> end = MakePrompt(1 + random_() % 60, random_());
    prompt.insert(prompt.end(), end.begin(), end.end());
    return prompt;
  }

  const uint64_t disk_bytes_;
  VirtualClock* clock_ = nullptr;  // of the server
  std::mt19937_64 random_{test::RandomSeed(5)};
};

class EngineFaultTest : public ::testing::TestWithParam<Plan> {};

TEST_P(EngineFaultTest, AnswersAsWithoutADisk) {
  const Plan& plan = GetParam();
  constexpr uint32_t kQuarter = kNumPrompts / 4;
  FaultRun run(uint64_t{256} << 20);
  const auto world = run.Start();
  const auto loaded = [&world] { return world->disk->Stats().loaded_tokens; };
  const auto stored = [&world] { return world->disk->Stats().disk.stores[0]; };
  run.Ask(*world, 0, kQuarter);
  EXPECT_GT(loaded(), 0U);
  run.files.SetRates(plan.rates);
  const uint64_t loaded_before = loaded();
  run.Ask(*world, kQuarter, kQuarter);
  FaultRun::Settle(*world);
  EXPECT_GT(loaded(), loaded_before) << "the disk was of no use among the faults";
  if (plan.passes) {
    run.files.SetRates({});
    world->clock.Advance(kv::disk::DiskOptions().full_pause);
  }
  const uint64_t stored_before = stored();
  run.Ask(*world, 2 * kQuarter, 2 * kQuarter);
  FaultRun::Settle(*world);
  EXPECT_GT(stored(), stored_before) << "stores never went on";
  const DiskStats stats = world->disk->Stats().disk;
  run.ExpectAllCounted(stats);
  if (!plan.rare || kNumPrompts >= 10000) {
    EXPECT_GT(TotalFaults(run.files.counts()), 0U);
  }
  std::cout << TotalFaults(run.files.counts()) << " faults in " << stats.reads << " reads and "
            << stats.writes << " writes, " << loaded() / kStripeTokens << " stripes from disk, "
            << stats.outages << " outages\n";
  EXPECT_EQ(stats.outages, stats.recoveries + (stats.state == TierState::kDegraded ? 1 : 0));
  run.files.SetRates({});
  world->disk->Close().IgnoreError();  // it may be degraded
}

constexpr Duration kStall = std::chrono::milliseconds(500);

INSTANTIATE_TEST_SUITE_P(
    Faults,
    EngineFaultTest,
    ::testing::Values(
        Plan{"ReadErrorsOneIn32", {.read_error = 1.0 / 32}},
        Plan{"ReadErrorsOneIn1000", {.read_error = 1.0 / 1000}, /*passes=*/false, /*rare=*/true},
        Plan{"WriteErrorsOneIn128", {.write_error = 1.0 / 128}, /*passes=*/false, /*rare=*/true},
        Plan{"WriteErrorsOneIn1000", {.write_error = 1.0 / 1000}, /*passes=*/false, /*rare=*/true},
        Plan{"ShortTransfers", {.short_read = 0.02, .short_write = 0.02}},
        Plan{"Flips", {.flip = 0.02}},
        Plan{"Stalls", {.read_stall = 0.01, .write_stall = 0.01, .stall = kStall}},
        Plan{"SyncErrors", {.sync_error = 0.1}},
        Plan{"FullForAWhile", {.no_space = 1.0}, /*passes=*/true},
        Plan{"Mixed",
             {.read_error = 1.0 / 1000,
              .write_error = 1.0 / 1000,
              .short_read = 0.02,
              .short_write = 0.02,
              .no_space = 1.0 / 1000,
              .flip = 0.02,
              .read_stall = 1.0 / 1000,
              .write_stall = 1.0 / 1000,
              .sync_error = 1.0 / 1000,
              .stall = kStall}}),
    [](const auto& plan) { return std::string(plan.param.name); });

// Loading from a slow disk is not worth it, but that is not for ever: it may be quick again.
TEST(EngineFaults, ADiskThatWasSlowIsTriedAgainAfterAMinute) {
  FaultRun run(uint64_t{256} << 20);
  const auto world = run.Start();
  const auto loaded = [&world] { return world->disk->Stats().loaded_tokens; };
  run.Ask(*world, 0, 200);
  EXPECT_GT(loaded(), 0U);
  run.files.SetRates({.read_stall = 1, .stall = std::chrono::milliseconds(40)});
  run.Ask(*world, 200, 400);
  run.files.SetRates({});
  const uint64_t before = loaded();
  run.Ask(*world, 600, 40);
  EXPECT_EQ(loaded(), before) << "it is known to be slow";
  world->clock.Advance(std::chrono::seconds(60));
  run.Ask(*world, 640, 40);
  EXPECT_GT(loaded(), before);
  FaultRun::Settle(*world);
}

// A disk that is collected all the time, whose journals and checkpoints fail too, and servers that
// come and go over it.
TEST(EngineFaults, ASmallDiskWhereEverythingFailsServesNothingWrong) {
  constexpr uint32_t kLives = 5;
  FaultRun run(uint64_t{2} << 20);
  uint64_t loaded = 0;
  for (uint32_t life = 0; life < kLives; ++life) {
    const auto world = run.Start();
    run.files.SetRates({.read_error = 1.0 / 1000,
                        .write_error = 1.0 / 1000,
                        .short_read = 0.05,
                        .short_write = 0.05,
                        .no_space = 1.0 / 4000,
                        .flip = 0.02,
                        .read_stall = 1.0 / 1000,
                        .write_stall = 1.0 / 1000,
                        .sync_error = 1.0 / 1000,
                        .unlink_error = 0.01,
                        .spare_logs = false});
    run.Ask(*world, life * kNumPrompts / kLives, kNumPrompts / kLives);
    FaultRun::Settle(*world);
    run.files.SetRates({});
    const kv::DiskTierStats stats = world->disk->Stats();
    loaded += stats.loaded_tokens;
    EXPECT_GT(stats.disk.collected_segments, 0U);
    world->disk->Close().IgnoreError();  // it may be degraded
  }
  EXPECT_GT(loaded, 0U);
  EXPECT_GT(TotalFaults(run.files.counts(FileClass::kLog)), 0U);
}

}  // namespace
}  // namespace spindle::engine
