#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "disk_test_util.h"
#include "kv/disk/fsck.h"
#include "kv/disk/session_record.h"

namespace spindle::kv::disk {
namespace {

using ::spindle::test::MemoryFiles;
using ::testing::HasSubstr;

class DiskStoreTest : public ::testing::Test {
 protected:
  MemoryFiles files;
  VirtualClock clock;
};

TEST_F(DiskStoreTest, RecordsOfAllKindsComeBackAsTheyWere) {
  auto store = OpenStore(files, clock);
  const TestStripe stripe(1);
  const TestStripe tail(2, SmallIdentity().geometry, 17);
  ASSERT_TRUE(StoreNow(*store, stripe).ok());
  ASSERT_TRUE(StoreNow(*store, tail).ok());
  SessionManifest session{.id = "chat", .tenant = "t", .created_s = 5, .last_used_s = 9};
  session.tokens.assign(130, 42);
  session.stripe_keys = {TestStripe::Key(1), TestStripe::Key(2)};
  const RecordId session_id{SessionKey("t", "chat"), RecordKind::kSession, 0};
  ASSERT_TRUE(PutNow(*store, session_id, EncodeSession(session)).ok());
  const std::vector<uint8_t> blob(10'001, 0xa5);
  ASSERT_TRUE(PutNow(*store, {TestStripe::Key(1), RecordKind::kBlob, 3}, blob).ok());

  for (int life = 0; life < 2; ++life) {
    EXPECT_TRUE(LoadNow(*store, stripe).ok());
    EXPECT_TRUE(LoadNow(*store, tail).ok());
    const auto bytes = FetchNow(*store, session_id);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const auto decoded = DecodeSession(*bytes);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(*decoded, session);
    EXPECT_EQ(*FetchNow(*store, {TestStripe::Key(1), RecordKind::kBlob, 3}), blob);
    EXPECT_EQ(FetchNow(*store, {TestStripe::Key(1), RecordKind::kBlob, 4}).status().code(),
              absl::StatusCode::kNotFound);
    EXPECT_TRUE(store->CheckIntegrity().ok()) << store->CheckIntegrity();
    if (life == 0) {
      ASSERT_TRUE(store->Close().ok());
      store = OpenStore(files, clock);
      EXPECT_EQ(store->Stats().recovered_entries, 4U);
    }
  }
  EXPECT_EQ(store->Stats().loads[KindIdx(RecordKind::kStripe)], 1U);
  EXPECT_GT(store->Stats().loaded_bytes[KindIdx(RecordKind::kSession)], 500U);
}

TEST_F(DiskStoreTest, CompletionsCarryWhatTheHeaderSays) {
  auto store = OpenStore(files, clock);
  const TestStripe stripe(9);
  ASSERT_TRUE(StoreNow(*store, stripe).ok());
  const AlignedBuffer destination(stripe.payload().size());
  const Completion completion =
      WaitFor(*store, *store->SubmitLoad(stripe.Load(destination.span())));
  EXPECT_EQ(completion.tag, 9U);
  EXPECT_EQ(completion.ordinal, 9U);
  EXPECT_EQ(completion.method, stripe.Store().method);
  EXPECT_EQ(completion.checksum, ChecksumOf(stripe.payload()));
}

TEST_F(DiskStoreTest, WhatWasNotCommittedIsLostWhatWasCommittedIsNot) {
  auto store = OpenStore(files, clock);
  files.StartRecording();
  ASSERT_TRUE(StoreNow(*store, TestStripe(1)).ok());
  store->Tick();
  clock.Advance(std::chrono::milliseconds(100));
  store->Tick();
  store->Tick();
  EXPECT_EQ(store->Stats().commits, 1U);
  ASSERT_TRUE(StoreNow(*store, TestStripe(2)).ok());
  EXPECT_TRUE(LoadNow(*store, TestStripe(2)).ok()) << "visible before it is durable";
  std::mt19937_64 random(1);
  const auto crashed = files.CrashAt(files.num_events(), MemoryFiles::Unsynced::kLost, random);
  auto reopened = OpenStore(*crashed, clock);
  EXPECT_TRUE(LoadNow(*reopened, TestStripe(1)).ok());
  EXPECT_TRUE(absl::IsNotFound(LoadNow(*reopened, TestStripe(2))));
}

TEST_F(DiskStoreTest, ADurableStoreCompletesWithTheGroupCommit) {
  auto store = OpenStore(files, clock);
  const TestStripe stripe(1);
  ASSERT_TRUE(store->SubmitStore(stripe.Store(Ack::kDurable)).ok());
  std::array<Completion, 4> out;
  store->Tick();
  EXPECT_EQ(store->Poll(out), 0U);
  EXPECT_TRUE(store->NextTick().has_value());
  clock.Advance(std::chrono::milliseconds(100));
  store->Tick();
  ASSERT_EQ(store->Poll(out), 1U);
  EXPECT_TRUE(out[0].status.ok());
  EXPECT_EQ(store->Stats().undurable_entries, 0U);
}

TEST_F(DiskStoreTest, AClockSetBackStopsNeitherCommitsNorStores) {
  clock.Advance(std::chrono::hours(10));
  auto store = OpenStore(files, clock);
  ASSERT_TRUE(StoreNow(*store, TestStripe(1)).ok());
  clock.Advance(-std::chrono::hours(9));
  store->Tick();
  store->Tick();
  EXPECT_EQ(store->Stats().commits, 1U);
  ASSERT_TRUE(StoreNow(*store, TestStripe(2)).ok());
  EXPECT_TRUE(store->Flush().ok());
  EXPECT_TRUE(LoadNow(*store, TestStripe(2)).ok());
  EXPECT_FALSE((SessionManifest{.last_used_s = 1000, .ttl_s = 1}).Expired(10));
  EXPECT_TRUE((SessionManifest{.last_used_s = 1000, .ttl_s = 1}).Expired(1001));
}

TEST_F(DiskStoreTest, ALaterTailReplacesTheEarlierOneAlsoAfterARestart) {
  auto store = OpenStore(files, clock);
  TestStripe first(1, SmallIdentity().geometry, 5);
  TestStripe second(2, SmallIdentity().geometry, 9);
  second.id = first.id;
  ASSERT_TRUE(StoreNow(*store, first).ok());
  ASSERT_TRUE(StoreNow(*store, second).ok());
  EXPECT_TRUE(LoadNow(*store, second).ok());
  EXPECT_EQ(store->Stats().entries, 1U);
  ASSERT_TRUE(store->Close().ok());
  store = OpenStore(files, clock);
  EXPECT_TRUE(LoadNow(*store, second).ok());
  EXPECT_TRUE(absl::IsDataLoss(LoadNow(*store, first))) << "the tokens are not those";
}

TEST_F(DiskStoreTest, AnErasedRecordStaysErased) {
  auto store = OpenStore(files, clock);
  ASSERT_TRUE(StoreNow(*store, TestStripe(1)).ok());
  ASSERT_TRUE(store->Flush().ok());
  EXPECT_TRUE(store->Erase(TestStripe(1).id));
  EXPECT_FALSE(store->Erase(TestStripe(1).id));
  EXPECT_FALSE(store->Contains(TestStripe(1).id));
  ASSERT_TRUE(store->Close().ok());
  store = OpenStore(files, clock);
  EXPECT_FALSE(store->Contains(TestStripe(1).id));
}

TEST_F(DiskStoreTest, OnlyTheStripeThatWasAskedForIsLoaded) {
  auto store = OpenStore(files, clock);
  const TestStripe stripe(5);
  const AlignedBuffer destination(stripe.payload().size());
  const auto load = [&](auto change) {
    EXPECT_TRUE(store->Contains(stripe.id) || StoreNow(*store, stripe).ok());
    LoadRequest request = stripe.Load(destination.span());
    change(request);
    return WaitFor(*store, *store->SubmitLoad(request)).status.code();
  };
  std::vector<TokenId> other = stripe.tokens;
  other[63] ^= 1;
  EXPECT_EQ(load([](LoadRequest&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(load([](LoadRequest& r) { r.parent[31] ^= 1; }), absl::StatusCode::kDataLoss);
  EXPECT_EQ(load([&](LoadRequest& r) { r.tokens = other; }), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Failures(store->Stats(), LoadFailure::kMismatch), 2U);
  EXPECT_EQ(store->Stats().tombstones, 2U);
}

TEST_F(DiskStoreTest, EveryFlippedBitOfARecordIsFound) {
  files.StartRecording();
  auto store = OpenStore(files, clock);
  const TestStripe stripe(1);
  ASSERT_TRUE(StoreNow(*store, stripe).ok());
  ASSERT_TRUE(store->Flush().ok());
  const std::string path = store->directory() + "/" + SegmentName(1);
  // Every byte of the header up to the end of its table, its checksum, and bytes of the payload.
  std::vector<size_t> places = {2000, 4092, 4095, 4096, 12287};
  for (size_t at = 0; at < 560; ++at) {
    places.push_back(at);
  }
  std::mt19937_64 random(1);
  for (const size_t at : places) {
    const auto disk = files.CrashAt(files.num_events(), MemoryFiles::Unsynced::kLost, random);
    disk->Bytes(path)[kAlignment + at] ^= static_cast<uint8_t>(1U << at % 8);
    auto damaged = OpenStore(*disk, clock);
    ASSERT_TRUE(damaged->Contains(stripe.id));
    EXPECT_TRUE(absl::IsDataLoss(LoadNow(*damaged, stripe))) << "byte " << at;
    EXPECT_FALSE(damaged->Contains(stripe.id)) << "a damaged record is not asked for again";
  }
  EXPECT_TRUE(LoadNow(*store, stripe).ok()) << "the control";
}

TEST_F(DiskStoreTest, QueuesRefuseWhatIsBeyondTheirBounds) {
  DiskOptions options = SmallOptions();
  options.max_store_bytes = 36 << 10;
  options.max_loads = 2;
  auto store = OpenStore(files, clock, options);
  std::vector<TestStripe> stripes;
  for (uint64_t i = 1; i <= 4; ++i) {
    stripes.emplace_back(i);
  }
  EXPECT_TRUE(store->SubmitStore(stripes[0].Store()).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store->SubmitStore(stripes[0].Store()).status()));
  EXPECT_TRUE(store->ContainsOrStoring(stripes[0].id));
  EXPECT_FALSE(store->Contains(stripes[0].id));
  EXPECT_TRUE(store->SubmitStore(stripes[1].Store()).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(store->SubmitStore(stripes[3].Store()).status()));
  EXPECT_EQ(Skips(store->Stats(), StoreSkip::kBackpressure), 0U) << "published by Tick and Poll";
  store->Tick();
  EXPECT_EQ(Skips(store->Stats(), StoreSkip::kBackpressure), 1U);
  EXPECT_EQ(Skips(store->Stats(), StoreSkip::kPresent), 1U);
  const AlignedBuffer memory(3 * 8192);
  EXPECT_TRUE(store->SubmitLoad(stripes[0].Load(memory.span().subspan(0, 8192))).ok());
  EXPECT_TRUE(store->SubmitLoad(stripes[1].Load(memory.span().subspan(8192, 8192))).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      store->SubmitLoad(stripes[1].Load(memory.span().subspan(16384, 8192))).status()));
  EXPECT_TRUE(store->Flush().ok()) << "before the memory goes";
}

TEST_F(DiskStoreTest, ACancelledOrLateLoadThatHasNotBegunEndsOnce) {
  auto store = OpenStore(files, clock);
  ASSERT_TRUE(StoreNow(*store, TestStripe(1)).ok());
  const TestStripe stripe(1);
  const AlignedBuffer memory(2 * 8192);
  const auto cancelled = store->SubmitLoad(stripe.Load(memory.span().first(8192)));
  LoadRequest late = stripe.Load(memory.span().subspan(8192));
  late.deadline = clock.Now() + std::chrono::milliseconds(5);
  store->Cancel(*cancelled);
  store->Cancel(*cancelled);
  std::array<Completion, 4> out;
  ASSERT_EQ(store->Poll(out), 1U);
  EXPECT_TRUE(absl::IsCancelled(out[0].status) && out[0].final);
  ASSERT_TRUE(store->SubmitLoad(late).ok());
  EXPECT_LE(*store->NextTick(), late.deadline);
  EXPECT_EQ(store->Poll(out), 1U) << "in time";
  EXPECT_TRUE(out[0].status.ok());
  EXPECT_EQ(Failures(store->Stats(), LoadFailure::kCancelled), 1U);
}

TEST_F(DiskStoreTest, ASecondProcessIsToldWhoHasTheStore) {
  auto store = OpenStore(files, clock);
  const auto second = DiskStore::Open(SmallOptions(), SmallIdentity(), files, clock, nullptr);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("process 1"));
  auto other = OpenStore(files, clock, SmallOptions(), SmallIdentity(2));
  EXPECT_NE(other, nullptr) << "another model has a folder of its own";
  ASSERT_TRUE(store->Close().ok());
  EXPECT_NE(OpenStore(files, clock), nullptr);
}

TEST_F(DiskStoreTest, AModelOfEqualShapeFindsNothingOfAnother) {
  auto store = OpenStore(files, clock);
  ASSERT_TRUE(StoreNow(*store, TestStripe(1)).ok());
  ASSERT_TRUE(store->Close().ok());
  EXPECT_TRUE(absl::IsNotFound(
      LoadNow(*OpenStore(files, clock, SmallOptions(), SmallIdentity(2)), TestStripe(1))));
  StoreIdentity numerics = SmallIdentity();
  numerics.numerics_class = 8;
  auto second = OpenStore(files, clock, SmallOptions(), numerics);
  EXPECT_TRUE(absl::IsNotFound(LoadNow(*second, TestStripe(1))));
  EXPECT_TRUE(second->directory().ends_with("-2")) << second->directory();
  EXPECT_TRUE(LoadNow(*OpenStore(files, clock), TestStripe(1)).ok()) << "the control";
}

TEST_F(DiskStoreTest, AStoreOfALaterVersionIsLeftUntouched) {
  auto store = OpenStore(files, clock);
  ASSERT_TRUE(StoreNow(*store, TestStripe(1)).ok());
  ASSERT_TRUE(store->Close().ok());
  const std::string directory = store->directory();
  files.Bytes(directory + "/STORE")[8] = 2;
  const std::vector<std::string> before = files.Paths();
  store = OpenStore(files, clock);
  EXPECT_EQ(store->directory(), directory + "-2");
  EXPECT_FALSE(store->Contains(TestStripe(1).id));
  for (const std::string& path : before) {
    EXPECT_THAT(files.Paths(), ::testing::Contains(path));
  }
  EXPECT_EQ(ReadSuperblock(files, directory).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(DiskStoreTest, TheCapHoldsAndTheCollectorKeepsSessions) {
  DiskOptions options = SmallOptions();
  options.capacity_bytes = 1 << 20;
  auto store = OpenStore(files, clock, options);
  const RecordId session{TestStripe::Key(77), RecordKind::kSession, 0};
  const std::vector<uint8_t> manifest(700, 3);
  ASSERT_TRUE(PutNow(*store, session, manifest).ok());
  uint64_t stored = 0;
  uint64_t newest = 0;
  for (uint64_t i = 1; i <= 400; ++i) {
    if (StoreNow(*store, TestStripe(i)).ok()) {
      ++stored;
      newest = i;
    }
    clock.Advance(std::chrono::milliseconds(200));
    store->Tick();
    store->Tick();
    store->Tick();
    ASSERT_LE(store->Stats().used_bytes, options.capacity_bytes) << "after " << i;
  }
  EXPECT_GT(stored, 350U);
  EXPECT_GT(store->Stats().collected_segments, 20U);
  EXPECT_GT(store->Stats().copied_records, 0U);
  EXPECT_EQ(*FetchNow(*store, session), manifest);
  EXPECT_TRUE(LoadNow(*store, TestStripe(newest)).ok());
  EXPECT_TRUE(absl::IsNotFound(LoadNow(*store, TestStripe(1))));
  EXPECT_TRUE(store->CheckIntegrity().ok()) << store->CheckIntegrity();
  ASSERT_TRUE(store->Close().ok());
  store = OpenStore(files, clock, options);
  EXPECT_EQ(*FetchNow(*store, session), manifest);
  EXPECT_TRUE(LoadNow(*store, TestStripe(newest)).ok());
  EXPECT_TRUE(store->CheckIntegrity().ok()) << store->CheckIntegrity();
}

// What an operator's collection frees: segments that are mostly dead, and more down to a target.
TEST_F(DiskStoreTest, CollectDropsDownToItsTargetAndKeepsSessions) {
  auto store = OpenStore(files, clock);
  const RecordId session{TestStripe::Key(77), RecordKind::kSession, 0};
  const std::vector<uint8_t> manifest(700, 3);
  ASSERT_TRUE(PutNow(*store, session, manifest).ok());
  constexpr uint64_t kStored = 100;
  for (uint64_t i = 1; i <= kStored; ++i) {
    ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
  }
  const uint64_t full = store->Stats().used_bytes;
  ASSERT_TRUE(store->Collect(full).ok());  // all is live: nothing to gain
  EXPECT_EQ(store->Stats().entries, kStored + 1);
  // Nine of ten are gone, so the others move together.
  for (uint64_t i = 1; i <= kStored; ++i) {
    if (i % 10 != 0) {
      store->Erase(TestStripe(i).id);
    }
  }
  ASSERT_TRUE(store->Collect(full).ok());
  EXPECT_LT(store->Stats().used_bytes, full / 3);
  EXPECT_GT(store->Stats().copied_records, 0U);
  for (uint64_t i = 10; i <= kStored; i += 10) {
    EXPECT_TRUE(LoadNow(*store, TestStripe(i)).ok()) << i;
  }
  ASSERT_TRUE(store->Collect(0).ok());
  EXPECT_EQ(store->Stats().entries, 1U);
  EXPECT_EQ(*FetchNow(*store, session), manifest);
  EXPECT_TRUE(store->CheckIntegrity().ok()) << store->CheckIntegrity();
  ASSERT_TRUE(store->Close().ok());
}

TEST_F(DiskStoreTest, AFullDeviceStopsStoresForAMinuteAndLoadsNever) {
  auto store = OpenStore(files, clock);
  ASSERT_TRUE(StoreNow(*store, TestStripe(1)).ok());
  ASSERT_TRUE(store->Flush().ok());
  files.SetCapacity(0);
  EXPECT_TRUE(absl::IsResourceExhausted(StoreNow(*store, TestStripe(2))));
  store->Tick();
  EXPECT_EQ(store->Stats().state, TierState::kReadOnly);
  EXPECT_TRUE(absl::IsResourceExhausted(StoreNow(*store, TestStripe(3))));
  files.SetCapacity(uint64_t{1} << 40);
  clock.Advance(std::chrono::seconds(61));
  store->Tick();
  store->Tick();
  EXPECT_TRUE(StoreNow(*store, TestStripe(4)).ok());
  EXPECT_TRUE(LoadNow(*store, TestStripe(4)).ok());
  EXPECT_EQ(store->Stats().state, TierState::kOk);
}

TEST_F(DiskStoreTest, FsckFindsDamageAndRepairsTheIndex) {
  auto store = OpenStore(files, clock);
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
  }
  ASSERT_TRUE(store->Close().ok());
  const std::string directory = store->directory();
  auto report = Fsck(files, directory, false, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->clean());
  EXPECT_EQ(report->records, 20U);
  EXPECT_EQ(report->entries, 20U);
  // Damage the payload of the third record.
  files.Bytes(directory + "/" + SegmentName(1))[kAlignment + 2 * 12288 + 5000] ^= 1;
  report = Fsck(files, directory, false, nullptr);
  EXPECT_FALSE(report->clean());
  EXPECT_EQ(report->damaged, 1U);
  ASSERT_EQ(report->problems.size(), 1U);
  EXPECT_THAT(report->problems[0], HasSubstr("offset " + std::to_string(kAlignment + 2 * 12288)));
  report = Fsck(files, directory, true, nullptr);
  EXPECT_TRUE(report->repaired);
  EXPECT_TRUE(Fsck(files, directory, false, nullptr)->clean());
  store = OpenStore(files, clock);
  EXPECT_EQ(store->Stats().entries, 19U);
  EXPECT_TRUE(LoadNow(*store, TestStripe(4)).ok());
}

TEST_F(DiskStoreTest, FsckRebuildsADamagedIndexFromTheRecords) {
  auto store = OpenStore(files, clock);
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
  }
  ASSERT_TRUE(store->Close().ok());
  const std::string directory = store->directory();
  for (const std::string& path : files.Paths()) {
    if (path.ends_with(".ckpt")) {
      files.Bytes(path)[kAlignment + 100] ^= 1;
    }
  }
  auto report = Fsck(files, directory, false, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->clean());
  EXPECT_EQ(report->unreferenced, 20U) << "the damaged checkpoint is not believed";
  report = Fsck(files, directory, true, nullptr);
  EXPECT_TRUE(report->repaired);
  store = OpenStore(files, clock);
  EXPECT_EQ(store->Stats().entries, 20U);
  EXPECT_TRUE(LoadNow(*store, TestStripe(20)).ok());
}

TEST_F(DiskStoreTest, AJournalThatGrowsIsReplacedByACheckpoint) {
  DiskOptions options = SmallOptions();
  options.checkpoint_journal_bytes = 64 << 10;
  auto store = OpenStore(files, clock, options);
  for (uint64_t i = 1; i <= 200; ++i) {
    ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
    clock.Advance(std::chrono::milliseconds(150));
    store->Tick();
    store->Tick();
  }
  EXPECT_GE(store->Stats().checkpoints, 5U);
  uint64_t journals = 0;
  for (const std::string& path : files.Paths()) {
    journals += path.ends_with(".log") ? 1U : 0U;
  }
  EXPECT_LE(journals, 2U);
  ASSERT_TRUE(store->Flush().ok());
  ASSERT_TRUE(store->Close().ok());
  store = OpenStore(files, clock, options);
  EXPECT_EQ(store->Stats().entries, 200U);
}

}  // namespace
}  // namespace spindle::kv::disk
