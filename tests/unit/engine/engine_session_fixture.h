// Sessions through the engine on the test's own thread, with a fake forward pass that reads its
// whole history back from the KV store: rows that come back wrong change the answer.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/engine_world.h"
#include "support/temp_folder.h"

namespace spindle::engine {

inline constexpr uint32_t kTurnTokens = 8;
// Tokens of an answer that have KV: the last one is never computed.
inline constexpr uint32_t kTurnRows = kTurnTokens - 1;

struct Turn {
  std::vector<TokenId> history;  // prompt and answer
  uint32_t cached = 0;
};

class EngineSessionTest : public ::testing::Test {
 protected:
  EngineSessionTest() {
    options_.num_stripes = 256;
    options_.disk = kv::disk::DiskOptions{};
    options_.disk->path = folder_.path();
    options_.disk->capacity_bytes = uint64_t{256} << 20;
    options_.disk->segment_bytes = uint64_t{1} << 20;
    options_.disk->min_free_bytes = 0;
    options_.disk->min_free_fraction = 0;
    options_.disk->io_mode = kv::disk::IoMode::kInline;
    options_.files = &kv::disk::SystemFiles();
    options_.sessions.wall_seconds = [this] { return wall_; };
  }

  void Start() { world_ = std::make_unique<testing::EngineWorld>(options_); }

  // A clean stop.
  void Stop() {
    Settle();
    static_cast<void>(world_->disk->sessions().ReleaseHost());
    EXPECT_TRUE(world_->core.CheckIntegrity().ok()) << world_->core.CheckIntegrity();
    EXPECT_TRUE(world_->disk->CheckIntegrity().ok()) << world_->disk->CheckIntegrity();
    world_->CloseDisk();
    world_ = nullptr;
  }

  void Restart() {
    Stop();
    Start();
  }

  // Until saves are durable and the device is idle; restored sessions may stay.
  void Settle() {
    for (int step = 0; step < 400; ++step) {
      world_->clock.Advance(std::chrono::milliseconds(20));
      world_->core.Step();
      if (step > 20 && !Sessions().saving()) {
        return;
      }
    }
    FAIL() << "a session was never saved";
  }

  kv::SessionKeeper& Sessions() { return world_->disk->sessions(); }

  kv::SessionStats Stats() { return world_->disk->Stats().sessions; }

  uint64_t Ended(kv::SessionEnd cause) { return Stats().ended[static_cast<size_t>(cause)]; }

  template <typename... Clients>
  void Finish(Clients&... clients) {
    for (int step = 0; step < 100000; ++step) {
      world_->core.Step();
      static_cast<void>((size_t{0} + ... + clients->Read()));
      if ((... && clients->received.done.has_value())) {
        return;
      }
    }
    FAIL() << "a request never ended";
  }

  static EngineRequest RequestOf(const std::vector<TokenId>& prompt,
                                 std::optional<Retention> retention) {
    EngineRequest request = testing::MakeRequest(prompt, kTurnTokens);
    request.sampling.ignore_eos = true;
    request.may_stop_early = false;
    request.retention = std::move(retention);
    return request;
  }

  // Asks and checks the answer.
  Turn Ask(const std::vector<TokenId>& prompt, std::optional<Retention> retention = std::nullopt) {
    EngineRequest request = RequestOf(prompt, std::move(retention));
    const std::vector<TokenId> expected = testing::ExpectedTokens(prompt, request.sampling, 0);
    auto client = world_->Submit(std::move(request));
    Finish(client);
    EXPECT_EQ(client->received.tokens[0], expected);
    Turn turn{prompt, client->received.done->stats.cached_tokens};
    turn.history.insert(turn.history.end(), expected.begin(), expected.end());
    return turn;
  }

  static Retention Named(const std::string& id, uint64_t ttl_seconds = 3600) {
    return {{"tenant", id}, ttl_seconds};
  }

  static kv::SessionName Name(const std::string& id) { return {"tenant", id}; }

  void WaitRestored(const std::string& id) {
    for (int step = 0; step < 100; ++step) {
      world_->core.Step();
      if (Sessions().Find(Name(id))->state == kv::SessionState::kResident) {
        return;
      }
    }
    FAIL() << id << " was never restored";
  }

  uint64_t RecordsOf(kv::disk::RecordKind kind) {
    // The tier shows no records; what a new store of the same folder finds is on disk.
    uint64_t count = 0;
    auto clock = VirtualClock();
    auto store = kv::disk::DiskStore::Open(
        *options_.disk,
        {.fingerprint = options_.fingerprint, .geometry = testing::FakeGeometry()},
        *options_.files,
        clock,
        [] {});
    EXPECT_TRUE(store.ok()) << store.status();
    (*store)->ForEach(kind, [&count](const kv::disk::RecordId&) { ++count; });
    return count;
  }

  // Flips a bit in the middle of every place where `text` stands in a segment.
  int Damage(const std::string& text) const {
    int damaged = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (entry.path().extension() != ".kv") {
        continue;
      }
      std::ifstream in(entry.path(), std::ios::binary);
      std::string bytes{std::istreambuf_iterator<char>(in), {}};
      for (size_t at = bytes.find(text); at != std::string::npos; at = bytes.find(text, at + 1)) {
        bytes[at + text.size() / 2] ^= 1;
        ++damaged;
      }
      std::ofstream(entry.path(), std::ios::binary) << bytes;
    }
    return damaged;
  }

  test::TempFolder folder_;
  uint64_t wall_ = 1'000'000;
  testing::EngineWorld::Options options_;
  std::unique_ptr<testing::EngineWorld> world_;
};

}  // namespace spindle::engine
