// The engine over a disk tier, with a fake forward pass that reads its whole history back from the
// KV store: a stripe that comes back wrong changes the answer.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/engine_world.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace spindle::engine {
namespace {

using testing::Client;
using testing::EngineWorld;
using testing::ExpectedTokens;
using testing::MakePrompt;
using testing::MakeRequest;

constexpr uint32_t kAnswer = 8;

class EngineDiskTest : public ::testing::Test {
 protected:
  // A server with this folder's disk tier; the one before must be gone.
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

  static void Stop(std::unique_ptr<EngineWorld> world) {
    Settle(*world);
    EXPECT_TRUE(world->core.CheckIntegrity().ok()) << world->core.CheckIntegrity();
    world->CloseDisk();
  }

  // Runs until every client has its end, and the device has nothing left to do.
  template <typename... Clients>
  static void Finish(EngineWorld& world, Clients&... clients) {
    for (int step = 0; step < 100000; ++step) {
      world.core.Step();
      static_cast<void>((size_t{0} + ... + clients->Read()));
      if ((... && clients->received.done.has_value())) {
        return;
      }
    }
    FAIL() << "a request never ended";
  }

  static void Settle(EngineWorld& world) {
    for (int step = 0; step < 1000 && world.disk->HoldsHostStripes(); ++step) {
      world.core.Step();
    }
    EXPECT_FALSE(world.disk->HoldsHostStripes());
  }

  // Asks, checks the answer, and returns how many prompt tokens were cached.
  static uint32_t Ask(EngineWorld& world, const std::vector<TokenId>& prompt) {
    EngineRequest request = MakeRequest(prompt, kAnswer);
    const std::vector<TokenId> expected = ExpectedTokens(prompt, request.sampling, 0);
    auto client = world.Submit(std::move(request));
    Finish(world, client);
    EXPECT_EQ(client->received.tokens[0], expected);
    return client->received.done->stats.cached_tokens;
  }

  // Damages the middle of every segment file.
  void DamageSegments() const {
    int damaged = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (entry.path().extension() != ".kv") {
        continue;
      }
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
      file.seekg(middle);
      const int byte = file.get();
      file.seekp(middle);
      file.put(static_cast<char>(byte ^ 0x10));
      ++damaged;
    }
    ASSERT_GT(damaged, 0);
  }

  test::TempFolder folder_;
};

TEST_F(EngineDiskTest, RestartFindsThePrompt) {
  const std::vector<TokenId> prompt = MakePrompt(1500, 1);
  auto world = Start();
  EXPECT_EQ(Ask(*world, prompt), 0U);
  Stop(std::move(world));

  world = Start();
  EXPECT_EQ(Ask(*world, prompt), 1500U / kStripeTokens * kStripeTokens);
  const kv::DiskTierStats stats = world->disk->Stats();
  EXPECT_EQ(stats.loads, 1U);
  EXPECT_EQ(stats.loads_cut, 0U);
  EXPECT_EQ(stats.loaded_tokens, 1500U / kStripeTokens * kStripeTokens);
  EXPECT_EQ(stats.disk.loads[kv::disk::KindIdx(kv::disk::RecordKind::kStripe)], 23U);
  Stop(std::move(world));
}

TEST_F(EngineDiskTest, GeneratedTokensOfAnEarlierTurnComeBack) {
  std::vector<TokenId> history = MakePrompt(1100, 2);
  EngineRequest first = MakeRequest(history, 200);
  first.may_stop_early = false;
  first.sampling.ignore_eos = true;
  auto world = Start();
  auto client = world->Submit(std::move(first));
  Finish(*world, client);
  const std::vector<TokenId> answer = client->received.tokens[0];
  history.insert(history.end(), answer.begin(), answer.end());
  Stop(std::move(world));

  world = Start();
  EXPECT_GE(Ask(*world, history), 1216U);  // 19 stripes of 1,299 committed tokens or more
  Stop(std::move(world));
}

TEST_F(EngineDiskTest, ShortPromptsAreKeptFromTheirSecondUseOn) {
  const std::vector<TokenId> prompt = MakePrompt(300, 3);
  auto world = Start();
  Ask(*world, prompt);
  EXPECT_EQ(world->disk->Stats().disk.entries, 0U);
  EXPECT_GT(world->disk->Stats().stores_gated, 0U);
  Ask(*world, prompt);
  Settle(*world);
  EXPECT_EQ(world->disk->Stats().disk.entries, 4U);
  Stop(std::move(world));
}

TEST_F(EngineDiskTest, EvictedPrefixesComeBack) {
  auto world = Start(/*num_stripes=*/40);
  for (uint64_t seed = 10; seed < 14; ++seed) {
    EXPECT_EQ(Ask(*world, MakePrompt(1400, seed)), 0U);
    Settle(*world);
  }
  EXPECT_GT(world->store->Stats().prefix_evictions, 0U);
  EXPECT_EQ(Ask(*world, MakePrompt(1400, 10)), 1344U);
  EXPECT_GT(world->disk->Stats().loaded_tokens, 0U);
  Stop(std::move(world));
}

TEST_F(EngineDiskTest, TwinsShareOneLoad) {
  const std::vector<TokenId> prompt = MakePrompt(1500, 4);
  auto world = Start();
  Ask(*world, prompt);
  Stop(std::move(world));

  world = Start();
  auto first = world->Submit(MakeRequest(prompt, kAnswer));
  auto second = world->Submit(MakeRequest(prompt, kAnswer));
  Finish(*world, first, second);
  EXPECT_EQ(first->received.tokens[0], second->received.tokens[0]);
  EXPECT_GE(first->received.done->stats.cached_tokens, 1472U);
  EXPECT_GE(second->received.done->stats.cached_tokens, 1472U);
  EXPECT_EQ(world->disk->Stats().loads, 1U);
  Stop(std::move(world));
}

TEST_F(EngineDiskTest, CancelWhileLoadingLosesNothing) {
  const std::vector<TokenId> prompt = MakePrompt(1500, 5);
  auto world = Start();
  Ask(*world, prompt);
  Stop(std::move(world));

  world = Start();
  auto client = world->Submit(MakeRequest(prompt, kAnswer));
  world->core.Step();
  ASSERT_EQ(world->disk->Stats().loads, 1U);
  EXPECT_TRUE(world->disk->HoldsHostStripes());
  client->stream().Cancel(CancelCause::kClientGone);
  Finish(*world, client);
  Settle(*world);
  EXPECT_EQ(world->store->Stats().owned_stripes, 0U);
  EXPECT_GE(Ask(*world, prompt), 1472U);
  Stop(std::move(world));
}

TEST_F(EngineDiskTest, DamagedRecordsAreComputedAgain) {
  const std::vector<TokenId> prompt = MakePrompt(3000, 6);
  auto world = Start();
  Ask(*world, prompt);
  Stop(std::move(world));
  DamageSegments();

  world = Start();
  EXPECT_LT(Ask(*world, prompt), 2944U);
  EXPECT_EQ(world->disk->Stats().loads_cut, 1U);
  EXPECT_GT(world->disk->Stats().disk.tombstones, 0U);
  Stop(std::move(world));
}

TEST_F(EngineDiskTest, LoadsGiveWayToRunningRequests) {
  auto world = Start(/*num_stripes=*/64);
  Ask(*world, MakePrompt(2000, 20));
  Ask(*world, MakePrompt(2000, 21));
  Settle(*world);
  static_cast<void>(world->store->ResetPrefixCache());

  // Fills the store as it grows, while the other two are loaded.
  EngineRequest request = MakeRequest(MakePrompt(64, 22), 1500);
  request.sampling.ignore_eos = true;
  auto grows = world->Submit(std::move(request));
  world->core.Step();
  auto first = world->Submit(MakeRequest(MakePrompt(2000, 20), kAnswer));
  auto second = world->Submit(MakeRequest(MakePrompt(2000, 21), kAnswer));
  Finish(*world, grows, first, second);
  EXPECT_EQ(grows->received.tokens[0].size(), 1500U);
  EXPECT_TRUE(first->received.done->status.ok());
  EXPECT_TRUE(second->received.done->status.ok());
  Stop(std::move(world));
}

// Many requests with shared beginnings in a small store, with cancels and restarts: every answer is
// that of a machine without any cache.
TEST_F(EngineDiskTest, RandomTrafficAnswersAsWithoutCache) {
  std::mt19937_64 random(test::RandomSeed(7));
  uint64_t loaded = 0;
  for (int life = 0; life < 4; ++life) {
    auto world = Start(/*num_stripes=*/48);
    for (int round = 0; round < 30; ++round) {
      std::vector<std::unique_ptr<Client>> clients;
      std::vector<std::vector<TokenId>> expected;
      for (int i = 0; i < 4; ++i) {
        std::vector<TokenId> prompt = MakePrompt(1100 + random() % 700, 100 + random() % 6);
        if (random() % 3 == 0) {
          const size_t own = random() % prompt.size();
          std::fill(prompt.begin() + static_cast<std::ptrdiff_t>(own), prompt.end(), 1 + i);
        }
        EngineRequest request = MakeRequest(prompt, kAnswer);
        expected.push_back(ExpectedTokens(prompt, request.sampling, 0));
        clients.push_back(world->Submit(std::move(request)));
        ASSERT_NE(clients.back(), nullptr);
      }
      const size_t cancelled = random() % 8;
      const uint64_t when = random() % 6;
      for (uint64_t step = 0;; ++step) {
        ASSERT_LT(step, 100000U);
        if (step == when && cancelled < clients.size()) {
          clients[cancelled]->stream().Cancel(CancelCause::kClientGone);
        }
        world->core.Step();
        bool all = true;
        for (const auto& client : clients) {
          client->Read();
          all = all && client->received.done.has_value();
        }
        if (all) {
          break;
        }
      }
      for (size_t i = 0; i < clients.size(); ++i) {
        if (i != cancelled) {
          ASSERT_EQ(clients[i]->received.tokens[0], expected[i]);
        }
      }
      ASSERT_TRUE(world->core.CheckIntegrity().ok()) << world->core.CheckIntegrity();
    }
    loaded += world->disk->Stats().loaded_tokens;
    Stop(std::move(world));
  }
  EXPECT_GT(loaded, 10000U);
}

}  // namespace
}  // namespace spindle::engine
