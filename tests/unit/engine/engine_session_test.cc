// Sessions, retention and spills.
#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_session_fixture.h"
#include "support/random_seed.h"

namespace spindle::engine {
namespace {

using kv::SessionEnd;
using kv::SessionState;
using testing::ExpectedTokens;
using testing::MakePrompt;
using testing::MakeRequest;

// 4 stripes and 44 tokens: too short to be stored for its length.
TEST_F(EngineSessionTest, RetentionKeepsAShortPromptOverARestart) {
  const std::vector<TokenId> prompt = MakePrompt(300, 1);
  Start();
  Ask(prompt, Retention{{"tenant", ""}, 60});
  Settle();
  ASSERT_EQ(Stats().saves_complete, 1U);
  const auto sessions = Sessions().List("tenant");
  ASSERT_EQ(sessions.size(), 1U);
  EXPECT_THAT(sessions[0].name.id, ::testing::MatchesRegex("auto-[0-9a-f]{16}"));
  EXPECT_EQ(sessions[0].num_tokens, 300 + kTurnRows);
  EXPECT_EQ(sessions[0].tail_tokens, 300 + kTurnRows - 256);
  Restart();
  const Turn again = Ask(prompt);
  EXPECT_EQ(again.cached, 299U);  // all but the one that must be computed
  EXPECT_EQ(world_->disk->Stats().tail_tokens, 299U - 256U);
  Stop();
}

TEST_F(EngineSessionTest, WithoutRetentionItIsNotKept) {
  Start();
  Ask(MakePrompt(300, 1));
  Restart();
  EXPECT_EQ(Ask(MakePrompt(300, 1)).cached, 0U);
  Stop();
}

TEST_F(EngineSessionTest, TheNextTurnAfterARestartFindsEverything) {
  Start();
  Turn turn = Ask(MakePrompt(700, 2), Named("chat"));
  Restart();
  for (uint64_t round = 0; round < 5; ++round) {
    const uint32_t known = static_cast<uint32_t>(turn.history.size()) - 1;
    const std::vector<TokenId> more = MakePrompt(37, 50 + round);
    turn.history.insert(turn.history.end(), more.begin(), more.end());
    turn = Ask(turn.history, Named("chat"));
    EXPECT_EQ(turn.cached, known) << round;
    wall_ += 5;
    Restart();
    const auto info = Sessions().Find(Name("chat"));
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info->num_tokens, turn.history.size() - 1);
    EXPECT_EQ(info->created_s, 1'000'000U);
    EXPECT_EQ(info->last_used_s, wall_ - 5);
  }
  EXPECT_EQ(world_->store->Stats().seal_conflicts, 0U);
  Stop();
  EXPECT_EQ(RecordsOf(kv::disk::RecordKind::kSession), 1U);
  EXPECT_EQ(RecordsOf(kv::disk::RecordKind::kOpenTail), 1U);
}

// Stripes that were completed on top of a restored tail are bit for bit those of a cold run.
TEST_F(EngineSessionTest, RestoredTailsGiveTheSameStripes) {
  const auto stripes_of = [this](const std::vector<TokenId>& history) {
    const std::vector<Digest> keys = StripeKeys(Digest{}, history);
    const uint32_t num = world_->store->MatchPrefix(keys);
    const SequenceId sequence = world_->store->Open(BudgetGroupId(), keys, num);
    std::vector<uint64_t> checksums;
    for (uint32_t i = 0; i < num; ++i) {
      checksums.push_back(world_->store->Sealed(sequence, i).checksum.low);
    }
    world_->store->Close(sequence);
    return checksums;
  };
  Start();
  Turn turn = Ask(MakePrompt(350, 3), Named("chat"));
  Restart();
  turn.history.resize(turn.history.size() + 200, 5);
  const Turn warm = Ask(turn.history);
  EXPECT_EQ(warm.cached, 350 + kTurnRows);
  const auto from_tail = stripes_of(warm.history);
  Settle();
  static_cast<void>(Sessions().Delete(Name("chat")));
  static_cast<void>(world_->store->ResetPrefixCache());
  EXPECT_EQ(Ask(turn.history).cached, 0U);
  EXPECT_EQ(stripes_of(warm.history), from_tail);
  EXPECT_EQ(from_tail.size(), 8U);
  Stop();
}

TEST_F(EngineSessionTest, ATailIsUsedAsFarAsThePromptAgrees) {
  Start();
  Turn turn = Ask(MakePrompt(300, 4), Named("chat"));
  Restart();
  std::vector<TokenId> other(turn.history.begin(), turn.history.begin() + 280);
  other.push_back((turn.history[280] + 1) % 97);
  other.resize(400, 7);
  EXPECT_EQ(Ask(other).cached, 280U);
  Stop();
}

TEST_F(EngineSessionTest, RestoreBringsItIntoMemory) {
  Start();
  Turn turn = Ask(MakePrompt(900, 5), Named("chat"));
  Restart();
  ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());
  EXPECT_EQ(Sessions().Find(Name("chat"))->state, SessionState::kRestoring);
  ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());  // again is no error
  WaitRestored("chat");
  const auto info = Sessions().Find(Name("chat"));
  EXPECT_EQ(info->resident_tokens, info->num_tokens);
  EXPECT_EQ(Stats().restores_complete, 1U);
  EXPECT_EQ(Stats().resident, 1U);
  // Pinned: nothing of it is evicted.
  EXPECT_EQ(world_->store->ResetPrefixCache(), 0U);
  EXPECT_EQ(world_->store->Stats().owned_stripes, 15U);
  const uint64_t loads = world_->disk->Stats().loads;
  turn.history.push_back(1);
  EXPECT_EQ(Ask(turn.history).cached, 900 + kTurnRows);
  EXPECT_EQ(world_->disk->Stats().loads, loads);  // nothing more was read
  Stop();
}

// Rows of others that lay in the open stripe before do not reach the disk.
TEST_F(EngineSessionTest, TailsHoldTheirOwnRowsOnly) {
  options_.num_stripes = 8;
  Start();
  EngineRequest dirt = RequestOf(MakePrompt(450, 41), std::nullopt);
  dirt.cache_prompt = false;
  auto client = world_->Submit(std::move(dirt));
  Finish(client);
  const Turn turn = Ask(MakePrompt(70, 42), Named("chat"));
  Restart();
  ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());
  WaitRestored("chat");
  const std::vector<Digest> keys = StripeKeys(Digest{}, turn.history);
  const auto tail =
      Sessions().FindTail(keys[0], std::span<const TokenId>(turn.history).subspan(kStripeTokens));
  ASSERT_TRUE(tail.has_value());
  ASSERT_NE(tail->data, nullptr);
  EXPECT_EQ(tail->num_usable, 70 + kTurnRows - kStripeTokens);
  const kv::KvGeometry geometry = testing::FakeGeometry();
  for (uint32_t lane = 0; lane < kStripeTokens; ++lane) {
    const uint8_t* const row = tail->data + geometry.row_offset(1, lane) + geometry.head_bytes();
    const bool empty =
        std::all_of(row, row + geometry.row_bytes(), [](uint8_t byte) { return byte == 0; });
    EXPECT_TRUE(empty || lane < tail->num_usable) << lane;
  }
  Stop();
}

TEST_F(EngineSessionTest, RestoredSessionsGiveWayToRequests) {
  options_.num_stripes = 48;
  Start();
  Ask(MakePrompt(1200, 6), Named("chat"));
  Restart();
  ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());
  WaitRestored("chat");
  EXPECT_EQ(world_->store->Stats().owned_stripes, 19U);
  EXPECT_EQ(Ask(MakePrompt(2500, 7)).cached, 0U);
  EXPECT_EQ(Stats().resident, 0U);
  EXPECT_EQ(Sessions().Find(Name("chat"))->state, SessionState::kDisk);
  Stop();
}

TEST_F(EngineSessionTest, RestoringMoreThanHalfOfTheMemoryIsRefused) {
  options_.num_stripes = 32;
  Start();
  Ask(MakePrompt(1500, 8), Named("chat"));
  Settle();
  const absl::Status status = Sessions().Restore(Name("chat"));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  Stop();
}

TEST_F(EngineSessionTest, DeleteErasesWhatNoOtherSessionHas) {
  std::vector<TokenId> shared = MakePrompt(640, 9);
  std::vector<TokenId> first = shared;
  std::vector<TokenId> second = shared;
  first.resize(900, 1);
  second.resize(900, 2);
  Start();
  Ask(first, Named("first"));
  Ask(second, Named("second"));
  Settle();
  ASSERT_TRUE(Sessions().Delete(Name("first")).ok());
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("first")).status()));
  EXPECT_TRUE(absl::IsNotFound(Sessions().Delete(Name("first"))));
  EXPECT_EQ(Ended(SessionEnd::kDeleted), 1U);
  Restart();
  EXPECT_TRUE(absl::IsNotFound(Sessions().Restore(Name("first"))));
  EXPECT_EQ(Ask(first).cached, 640U);
  EXPECT_EQ(Ask(second).cached, 899U);
  ASSERT_TRUE(Sessions().Delete(Name("second")).ok());
  EXPECT_EQ(Stats().retained_bytes, 0U);
  Stop();
  EXPECT_EQ(RecordsOf(kv::disk::RecordKind::kStripe), 0U);
  EXPECT_EQ(RecordsOf(kv::disk::RecordKind::kOpenTail), 0U);
  EXPECT_EQ(RecordsOf(kv::disk::RecordKind::kSession), 0U);
}

TEST_F(EngineSessionTest, DeleteEndsASaveThatIsUnderWay) {
  Start();
  Ask(MakePrompt(500, 10), Named("chat"));
  ASSERT_TRUE(Sessions().saving());
  EXPECT_TRUE(Sessions().Delete(Name("chat")).ok());
  Settle();
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("chat")).status()));
  Stop();
  EXPECT_EQ(RecordsOf(kv::disk::RecordKind::kStripe), 0U);
  EXPECT_EQ(RecordsOf(kv::disk::RecordKind::kSession), 0U);
}

TEST_F(EngineSessionTest, SessionsEndWhenTheirTimeIsOver) {
  Start();
  Ask(MakePrompt(500, 11), Named("short", 1));
  Ask(MakePrompt(500, 12), Named("long", 100));
  Settle();
  EXPECT_TRUE(Sessions().Find(Name("short")).ok());
  ++wall_;
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("short")).status()));
  EXPECT_EQ(Ended(SessionEnd::kExpired), 1U);
  wall_ += 50;
  Restart();
  EXPECT_TRUE(Sessions().Find(Name("long")).ok());
  ASSERT_TRUE(Sessions().Restore(Name("long")).ok());  // a use
  WaitRestored("long");
  wall_ += 90;
  Restart();
  EXPECT_TRUE(Sessions().Find(Name("long")).ok());
  wall_ += 10;
  Restart();
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("long")).status()));
  // What it kept is ordinary content now.
  EXPECT_EQ(Ask(MakePrompt(500, 12)).cached, 448U);
  Stop();
}

TEST_F(EngineSessionTest, PinnedSessionsStay) {
  options_.sessions.max_sessions = 2;
  Start();
  Ask(MakePrompt(200, 13), Named("pinned", 10));
  Settle();
  ASSERT_TRUE(Sessions().SetPinned(Name("pinned"), true).ok());
  for (uint64_t i = 0; i < 3; ++i) {
    Ask(MakePrompt(200, 20 + i), Named("other" + std::to_string(i)));
    Settle();
  }
  EXPECT_EQ(Ended(SessionEnd::kNumber), 2U);
  wall_ += 1000;
  Restart();
  ASSERT_TRUE(Sessions().Find(Name("pinned")).ok());
  EXPECT_TRUE(Sessions().Find(Name("pinned"))->pinned);
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("other1")).status()));
  EXPECT_TRUE(Sessions().Find(Name("other2")).ok());
  ASSERT_TRUE(Sessions().SetPinned(Name("pinned"), false).ok());
  wall_ += 10;
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("pinned")).status()));
  Stop();
}

TEST_F(EngineSessionTest, TheirShareOfTheDiskIsBounded) {
  // 23 stripes of 20 KiB each; 1 % of 256 MiB holds 131.
  options_.sessions.max_share = 0.01;
  Start();
  for (uint64_t i = 0; i < 7; ++i) {
    Ask(MakePrompt(1500, 30 + i), Named(std::to_string(i)));
    Settle();
    EXPECT_LE(Stats().retained_bytes, (uint64_t{256} << 20) / 100);
  }
  EXPECT_EQ(Ended(SessionEnd::kSpace), 2U);
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find(Name("1")).status()));
  EXPECT_TRUE(Sessions().Find(Name("2")).ok());
  Stop();
}

TEST_F(EngineSessionTest, TheCollectorKeepsThem) {
  options_.disk->capacity_bytes = uint64_t{4} << 20;
  options_.disk->segment_bytes = uint64_t{256} << 10;
  Start();
  const Turn turn = Ask(MakePrompt(900, 40), Named("chat"));
  Settle();
  for (uint64_t i = 0; i < 30; ++i) {
    Ask(MakePrompt(1800, 60 + i));
    Settle();
  }
  const kv::disk::DiskStats disk = world_->disk->Stats().disk;
  EXPECT_GT(disk.collected_records, 300U);
  EXPECT_GT(disk.copied_records, 0U);
  Restart();
  ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());
  WaitRestored("chat");
  EXPECT_EQ(Stats().restores_complete, 1U);
  std::vector<TokenId> next = turn.history;
  next.push_back(1);
  EXPECT_EQ(Ask(next).cached, 900 + kTurnRows);
  Stop();
}

TEST_F(EngineSessionTest, OtherTenantsSeeNothing) {
  Start();
  const Turn turn = Ask(MakePrompt(500, 14), Named("chat"));
  Settle();
  EXPECT_TRUE(absl::IsNotFound(Sessions().Find({"other", "chat"}).status()));
  EXPECT_TRUE(absl::IsNotFound(Sessions().Delete({"other", "chat"})));
  EXPECT_TRUE(Sessions().List("other").empty());
  EXPECT_EQ(Sessions().List(std::nullopt).size(), 1U);
  EngineRequest request = RequestOf(turn.history, std::nullopt);
  request.prefix_root = Sha256().Field("other").Finish();
  auto client = world_->Submit(std::move(request));
  Finish(client);
  EXPECT_EQ(client->received.done->stats.cached_tokens, 0U);
  Stop();
}

TEST_F(EngineSessionTest, DamagedManifestsAreReportedAndReplaced) {
  Start();
  Ask(MakePrompt(500, 15), Named("unlucky-name"));
  Ask(MakePrompt(500, 16), Named("lucky"));
  Stop();
  ASSERT_GT(Damage("unlucky-name"), 0);
  Start();
  EXPECT_TRUE(absl::IsDataLoss(Sessions().Find(Name("unlucky-name")).status()));
  EXPECT_TRUE(absl::IsDataLoss(Sessions().Restore(Name("unlucky-name"))));
  EXPECT_EQ(Ended(SessionEnd::kDamaged), 1U);
  EXPECT_TRUE(Sessions().Find(Name("lucky")).ok());
  EXPECT_EQ(Ask(MakePrompt(500, 15), Named("unlucky-name")).cached, 448U);
  Settle();
  EXPECT_TRUE(Sessions().Find(Name("unlucky-name")).ok());
  Stop();
}

TEST_F(EngineSessionTest, SessionsOfAnotherModelAreToldApart) {
  Start();
  Ask(MakePrompt(500, 17), Named("chat"));
  Stop();
  options_.fingerprint = Sha256().Field("other model").Finish();
  Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(Sessions().Restore(Name("chat"))));
  EXPECT_TRUE(absl::IsNotFound(Sessions().Restore(Name("never"))));
  EXPECT_EQ(Ask(MakePrompt(500, 17), Named("chat")).cached, 0U);
  Settle();
  EXPECT_TRUE(Sessions().Find(Name("chat")).ok());
  Stop();
}

// A save that is under way at the end of the process comes to its end first.
TEST_F(EngineSessionTest, CloseFinishesSaves) {
  Start();
  Ask(MakePrompt(500, 18), Named("chat"));
  ASSERT_TRUE(Sessions().saving());
  world_->CloseDisk();
  world_ = nullptr;
  Start();
  EXPECT_TRUE(Sessions().Find(Name("chat")).ok());
  Stop();
}

TEST_F(EngineSessionTest, CancelledRequestsAreKeptAsFarAsTheyCame) {
  Start();
  EngineRequest request = RequestOf(MakePrompt(500, 19), Named("chat"));
  request.sampling.max_tokens = 1000;
  auto client = world_->Submit(std::move(request));
  while (client->received.tokens[0].size() < 30) {
    world_->core.Step();
    client->Read();
  }
  client->stream().Cancel(CancelCause::kClientGone);
  Finish(client);
  Settle();
  EXPECT_GE(Sessions().Find(Name("chat"))->num_tokens, 529U);
  Stop();
}

TEST_F(EngineSessionTest, MetricsFollow) {
  Start();
  Turn turn = Ask(MakePrompt(300, 21), Named("chat", 5));
  Restart();
  ASSERT_TRUE(Sessions().Restore(Name("chat")).ok());
  WaitRestored("chat");
  turn.history.push_back(1);
  Ask(turn.history, Named("chat", 5));
  Settle();
  wall_ += 5;
  Settle();
  const std::string text = world_->registry.Expose(false);
  for (const char* line :
       {R"(spindle_kv_sessions{model_name="fake",state="disk"} 0)",
        R"(spindle_kv_session_saves_total{model_name="fake",result="complete"} 1)",
        R"(spindle_kv_session_restores_total{model_name="fake",result="complete"} 1)",
        R"(spindle_kv_session_ends_total{model_name="fake",cause="expired"} 1)",
        R"(spindle_kv_tail_tokens_total{model_name="fake"} 51)"}) {
    EXPECT_THAT(text, ::testing::HasSubstr(line));
  }
  Stop();
}

// Conversations that grow, are forgotten, restored, pinned, expire and are cut by restarts, in a
// small memory and on a small disk: every answer is that of a machine without any cache.
TEST_F(EngineSessionTest, RandomConversationsAnswerAsWithoutSessions) {
  std::mt19937_64 random(test::RandomSeed(11));
  options_.num_stripes = 64;
  options_.disk->capacity_bytes = uint64_t{6} << 20;
  options_.disk->segment_bytes = uint64_t{256} << 10;
  options_.sessions.max_sessions = 5;
  std::vector<std::vector<TokenId>> histories(7);
  uint64_t tail_tokens = 0;
  uint64_t restores = 0;
  Start();
  for (int step = 0; step < 400; ++step) {
    const uint64_t number = random() % histories.size();
    const std::string id = std::to_string(number);
    std::vector<TokenId>& history = histories[number];
    switch (random() % 12) {
      case 0:
        static_cast<void>(Sessions().Delete(Name(id)));
        break;
      case 1:
      case 2:
        static_cast<void>(Sessions().Restore(Name(id)));
        break;
      case 3:
        static_cast<void>(Sessions().SetPinned(Name(id), random() % 3 == 0));
        break;
      case 4:
        wall_ += random() % 40;
        break;
      case 5:
        tail_tokens += world_->disk->Stats().tail_tokens;
        restores += Stats().restores_complete;
        Restart();
        break;
      default:
        if (history.empty() || history.size() > 1500) {
          history = MakePrompt(20 + random() % 400, random());
        }
        const std::vector<TokenId> more = MakePrompt(1 + random() % 90, random());
        history.insert(history.end(), more.begin(), more.end());
        history =
            Ask(history, random() % 4 == 0 ? std::nullopt : std::optional(Named(id, 60))).history;
    }
    ASSERT_TRUE(world_->core.CheckIntegrity().ok()) << world_->core.CheckIntegrity();
    ASSERT_FALSE(HasFailure()) << step;
  }
  EXPECT_GT(tail_tokens, 100U);
  EXPECT_GT(restores, 3U);
  Stop();
}

// Two sequences that outgrow the memory together: one is written to disk and comes back.
TEST_F(EngineSessionTest, PreemptedSequencesAreSpilled) {
  options_.num_stripes = 48;
  Start();
  const auto submit = [this](uint64_t seed) {
    EngineRequest request = RequestOf(MakePrompt(1000, seed), std::nullopt);
    request.sampling.max_tokens = 700;
    return world_->Submit(std::move(request));
  };
  auto first = submit(22);
  auto second = submit(23);
  Finish(first, second);
  for (const auto& [client, seed] : {std::pair(&first, 22U), std::pair(&second, 23U)}) {
    SamplingParams sampling = MakeRequest({}, 700).sampling;
    sampling.ignore_eos = true;
    EXPECT_EQ((*client)->received.tokens[0], ExpectedTokens(MakePrompt(1000, seed), sampling, 0));
  }
  Settle();
  const kv::DiskTierStats stats = world_->disk->Stats();
  EXPECT_GT(first->received.done->stats.preemptions + second->received.done->stats.preemptions, 0U);
  EXPECT_GE(stats.spills, 1U);
  EXPECT_GE(stats.spilled_stripes, 16U);
  EXPECT_GT(stats.loaded_tokens, 0U);
  EXPECT_GT(stats.tail_tokens, 0U);
  Stop();
  EXPECT_EQ(RecordsOf(kv::disk::RecordKind::kOpenTail), 0U);
}

}  // namespace
}  // namespace spindle::engine
