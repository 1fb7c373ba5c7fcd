// Sessions over a disk that is full, slow or broken: a save or a restore fails and is counted, the
// answers stay those of a machine without a disk.
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_session_fixture.h"
#include "support/fault_files.h"
#include "support/memory_files.h"
#include "support/random_seed.h"

namespace spindle::engine {
namespace {

using kv::SessionEnd;
using ::testing::HasSubstr;
using testing::MakePrompt;

class EngineSessionFaultTest : public EngineSessionTest {
 protected:
  EngineSessionFaultTest() {
    options_.disk->path = "/store";
    options_.disk->max_errors = 64;
    options_.files = &files_;
  }

  ~EngineSessionFaultTest() override { world_ = nullptr; }

  // As they would be found after a crash.
  void Crash() {
    world_ = nullptr;
    files_.SetRates({});
    Start();
  }

  test::MemoryFiles memory_;
  test::FaultFiles files_{memory_, 5};
};

TEST_F(EngineSessionFaultTest, AFullDeviceFailsTheSaveOnly) {
  Start();
  Ask(MakePrompt(1500, 1), Named("before"));
  Settle();
  memory_.SetCapacity(0);
  Ask(MakePrompt(1500, 2), Named("chat"));
  Settle();
  EXPECT_EQ(Stats().saves_failed, 1U);
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("chat")).status()));
  EXPECT_TRUE(Sessions().Restore(Name("before")).ok());
  WaitRestored("before");
  memory_.SetCapacity(uint64_t{1} << 40);
  world_->clock.Advance(std::chrono::seconds(61));
  Ask(MakePrompt(1500, 2), Named("chat"));
  Settle();
  EXPECT_EQ(Stats().saves_complete, 2U);
  EXPECT_TRUE(Sessions().Find(Name("chat")).ok());
  Stop();
}

// A session is as long as what could be written from its beginning on.
TEST_F(EngineSessionFaultTest, WriteErrorsLeaveALeadingPart) {
  constexpr uint64_t kSessions = 10;
  Start();
  files_.SetRates({.write_error = 0.05});
  std::vector<Turn> turns;
  for (uint64_t i = 0; i < kSessions; ++i) {
    turns.push_back(Ask(MakePrompt(1500, 100 + i), Named(std::to_string(i))));
    Settle();
  }
  files_.SetRates({});
  const kv::SessionStats stats = Stats();
  EXPECT_GT(stats.saves_partial, 0U);
  EXPECT_GT(stats.saves_complete, 0U);
  EXPECT_EQ(stats.saves_complete + stats.saves_partial + stats.saves_failed, kSessions);
  const std::vector<kv::SessionInfo> sessions = Sessions().List(std::nullopt);
  EXPECT_EQ(sessions.size(), kSessions - stats.saves_failed);
  Restart();
  uint64_t whole = 0;
  for (const kv::SessionInfo& session : sessions) {
    EXPECT_EQ(Sessions().Find(session.name)->num_tokens, session.num_tokens);
    const std::vector<TokenId>& history = turns[std::stoul(session.name.id)].history;
    const bool is_whole = session.num_tokens == history.size() - 1;
    whole += is_whole ? 1 : 0;
    EXPECT_TRUE(is_whole || session.num_tokens % kStripeTokens == 0);
    ASSERT_TRUE(Sessions().Restore(session.name).ok());
    WaitRestored(session.name.id);
    EXPECT_TRUE(Sessions().ReleaseHost());
  }
  EXPECT_EQ(whole, stats.saves_complete);
  EXPECT_EQ(Stats().restores_complete, sessions.size());
  Stop();
}

TEST_F(EngineSessionFaultTest, SavesWaitForAQueueThatIsFull) {
  options_.disk->max_stores = 1;
  Start();
  Ask(MakePrompt(1500, 4), Named("chat"));
  Settle();
  EXPECT_EQ(Stats().saves_complete, 1U);
  EXPECT_EQ(Stats().saves_failed, 0U);
  Stop();
}

TEST_F(EngineSessionFaultTest, SavesBeyondTheirBoundAreRefused) {
  options_.sessions.max_pending = 2;
  options_.disk->commit_interval = std::chrono::seconds(5);  // saves are durable after that
  Start();
  for (uint64_t i = 0; i < 5; ++i) {
    Ask(MakePrompt(300, 10 + i), Named(std::to_string(i)));
  }
  EXPECT_EQ(Stats().saves_failed, 3U);
  Settle();
  EXPECT_EQ(Stats().saves_complete, 2U);
  Stop();
}

TEST_F(EngineSessionFaultTest, RestoresBeyondTheirBoundAreRefused) {
  options_.sessions.max_pending = 1;
  Start();
  for (const char* id : {"a", "b"}) {
    Ask(MakePrompt(300, 20), Named(id));
    Settle();
  }
  Restart();
  EXPECT_TRUE(Sessions().Restore(Name("a")).ok());
  const absl::Status refused = Sessions().Restore(Name("b"));
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1 sessions are being read"));
  EXPECT_TRUE(absl::IsUnavailable(Sessions().SetPinned(Name("b"), true)));
  EXPECT_FALSE(Sessions().Find(Name("b"))->pinned);
  WaitRestored("a");
  Settle();
  EXPECT_TRUE(Sessions().Restore(Name("b")).ok());
  WaitRestored("b");
  Stop();
}

TEST_F(EngineSessionFaultTest, AReadErrorFailsTheRestoreOnly) {
  Start();
  Ask(MakePrompt(500, 30), Named("chat"));
  Restart();
  files_.SetRates({.read_error = 1});
  ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());
  Settle();
  EXPECT_EQ(Stats().restores_failed, 1U);
  EXPECT_EQ(Sessions().Find(Name("chat"))->state, kv::SessionState::kDisk);
  files_.SetRates({});
  ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());
  WaitRestored("chat");
  EXPECT_EQ(Stats().restores_complete, 1U);
  Stop();
}

TEST_F(EngineSessionFaultTest, ADamagedManifestEndsTheSession) {
  Start();
  Ask(MakePrompt(500, 31), Named("chat"));
  Restart();
  files_.SetRates({.flip = 1});
  ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());
  Settle();
  files_.SetRates({});
  EXPECT_EQ(Ended(SessionEnd::kDamaged), 1U);
  EXPECT_TRUE(absl::IsDataLoss(Sessions().Find(Name("chat")).status()));
  EXPECT_TRUE(Sessions().Delete(Name("chat")).ok());
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("chat")).status()));
  Stop();
}

TEST_F(EngineSessionFaultTest, DamagedStripesOfARestoreAreComputedAgain) {
  Start();
  const Turn turn = Ask(MakePrompt(900, 32), Named("chat"));
  Restart();
  for (const std::string& path : memory_.Paths()) {
    if (path.ends_with(".kv")) {
      std::vector<uint8_t>& bytes = memory_.Bytes(path);
      bytes[bytes.size() / 2] ^= 1;  // in one of the stripes
    }
  }
  ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());
  Settle();
  EXPECT_EQ(Stats().restores_partial, 1U);
  std::vector<TokenId> next = turn.history;
  next.push_back(1);
  EXPECT_LT(Ask(next).cached, 900 + kTurnRows);
  Stop();
}

// A session that ends while its manifest is read or written again stays ended.
TEST_F(EngineSessionFaultTest, DeleteEndsAChangeThatIsUnderWay) {
  for (int steps = 0; steps < 4; ++steps) {
    Start();
    Ask(MakePrompt(300, 33), Named("chat"));
    Settle();
    ASSERT_TRUE(Sessions().SetPinned(Name("chat"), true).ok());
    ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());
    for (int i = 0; i < steps; ++i) {
      world_->core.Step();
    }
    ASSERT_TRUE(Sessions().Delete(Name("chat")).ok());
    Restart();
    EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("chat")).status())) << steps;
    Stop();
  }
}

TEST_F(EngineSessionFaultTest, ADegradedDiskSavesNothingAndAnswers) {
  options_.disk->max_errors = 2;
  Start();
  Ask(MakePrompt(900, 34), Named("early"));
  Settle();
  files_.SetRates({.write_error = 1});
  Ask(MakePrompt(900, 35), Named("late"));
  Settle();
  EXPECT_EQ(world_->disk->Stats().disk.state, kv::disk::TierState::kDegraded);
  EXPECT_TRUE(absl::IsUnavailable(Sessions().Restore(Name("early"))));
  Ask(MakePrompt(900, 36), Named("later"));
  Settle();
  EXPECT_EQ(Stats().saves_failed, 2U);
  Crash();
  EXPECT_TRUE(Sessions().Find(Name("early")).ok());
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("late")).status()));
  Stop();
}

// All faults at once, with crashes: every answer is that of a machine without any cache.
TEST_F(EngineSessionFaultTest, ConversationsOverABadDiskAnswerAsWithoutIt) {
  std::mt19937_64 random(test::RandomSeed(13));
  options_.num_stripes = 64;
  options_.disk->capacity_bytes = uint64_t{6} << 20;
  options_.disk->segment_bytes = uint64_t{256} << 10;
  const test::FaultRates rates = {.read_error = 0.02,
                                  .write_error = 0.02,
                                  .short_read = 0.1,
                                  .short_write = 0.1,
                                  .no_space = 0.002,
                                  .flip = 0.02,
                                  .sync_error = 0.02,
                                  .unlink_error = 0.02};
  std::vector<std::vector<TokenId>> histories(6);
  Start();
  for (int step = 0; step < 150; ++step) {
    files_.SetRates(rates);
    const uint64_t number = random() % histories.size();
    std::vector<TokenId>& history = histories[number];
    const uint64_t what = random() % 10;
    if (what == 0) {
      static_cast<void>(Sessions().Restore(Name(std::to_string(number))));
    } else if (what == 1) {
      static_cast<void>(Sessions().Delete(Name(std::to_string(number))));
    } else if (what == 2) {
      Crash();
    } else {
      if (history.empty() || history.size() > 1200) {
        history = MakePrompt(20 + random() % 400, random());
      }
      history = Ask(history, Named(std::to_string(number))).history;
    }
    Settle();
    ASSERT_TRUE(world_->core.CheckIntegrity().ok()) << world_->core.CheckIntegrity();
    ASSERT_FALSE(HasFailure()) << step;
  }
  EXPECT_GT(test::TotalFaults(files_.counts()), 50U);
  world_ = nullptr;
}

}  // namespace
}  // namespace spindle::engine
