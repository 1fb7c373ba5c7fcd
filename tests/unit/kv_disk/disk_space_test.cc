// What becomes of a store whose folder, files or space go away, and what is never taken.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "disk_test_util.h"
#include "kv/disk/fsck.h"
#include "kv/disk/retain_sessions.h"
#include "kv/disk/session_record.h"
#include "kv/disk/store_directory.h"
#include "support/fault_files.h"

namespace spindle::kv::disk {
namespace {

using ::spindle::test::FaultFiles;
using ::spindle::test::MemoryFiles;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint64_t kRecordBytes = 12288;

class DiskSpaceTest : public ::testing::Test {
 protected:
  void RemoveAll() {
    for (const std::string& path : files.Paths()) {
      ASSERT_TRUE(files.Unlink(path).ok());
    }
  }

  // Stores until the tier has noticed that it cannot measure its space.
  void StoreUntilOff(DiskStore& store) {
    for (uint64_t i = 1; i < 100 && store.Stats().state == TierState::kOk; ++i) {
      StoreNow(store, TestStripe(i)).IgnoreError();
      clock.Advance(seconds(5));
      store.Tick();
      store.Tick();
    }
  }

  MemoryFiles files;
  VirtualClock clock;
};

// A measurement that runs before stores which were accepted before it ends says nothing about them.
TEST_F(DiskSpaceTest, TheFreeSpaceFloorHoldsWhateverIsInFlight) {
  constexpr uint64_t kCapacity = uint64_t{4} << 20;
  constexpr uint64_t kFloor = uint64_t{1} << 20;
  files.SetCapacity(kCapacity);
  DiskOptions options = SmallOptions();
  options.min_free_bytes = kFloor;
  options.space_interval = milliseconds(1);
  FaultFiles late(files, 1);
  auto store = OpenStore(late, clock, options);
  std::vector<TestStripe> stripes;
  stripes.reserve(5000);
  uint64_t least = kCapacity;
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 50; ++i) {
      stripes.emplace_back(stripes.size() + 1);
      store->SubmitStore(stripes.back().Store()).IgnoreError();
    }
    clock.Advance(milliseconds(2));
    std::array<Completion, 64> done;
    store->Poll(done);
    store->Tick();  // begins a measurement, which sees what is free before the next stores
    late.SetFreeSpace(files.FreeSpace("/").value());
    least = std::min(least, files.FreeSpace("/").value().free_bytes);
  }
  EXPECT_GT(Skips(store->Stats(), StoreSkip::kNoSpace), 0U);
  // Logs are not counted beforehand.
  EXPECT_GE(least, kFloor - (uint64_t{64} << 10));
  EXPECT_EQ(Errors(store->Stats(), DeviceError::kWriteFull), 0U);
  std::array<Completion, 64> done;
  while (store->Stats().stores_pending > 0) {
    store->Tick();
    store->Poll(done);
  }
}

TEST_F(DiskSpaceTest, AFolderThatVanishesSwitchesTheTierOff) {
  auto store = OpenStore(files, clock);
  ASSERT_TRUE(StoreNow(*store, TestStripe(500)).ok());
  RemoveAll();
  StoreUntilOff(*store);
  EXPECT_EQ(store->Stats().state, TierState::kDegraded);
  EXPECT_GE(Errors(store->Stats(), DeviceError::kSpace), 8U);
  EXPECT_EQ(store->Stats().outages, 1U);
}

TEST_F(DiskSpaceTest, AStoreInItsPlaceIsNotTakenForIt) {
  auto store = OpenStore(files, clock);
  const std::string directory = store->directory();
  ASSERT_TRUE(StoreNow(*store, TestStripe(500)).ok());
  RemoveAll();
  StoreUntilOff(*store);
  ASSERT_EQ(store->Stats().state, TierState::kDegraded);
  MemoryFiles others;
  OpenStore(others, clock);  // the first id
  OpenStore(others, clock, SmallOptions(), SmallIdentity(2));
  const auto file = files.Open(directory + "/" + kSuperblockName, OpenMode::kCreate, false);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const std::string& path : others.Paths()) {
    if (path.ends_with(kSuperblockName) && !path.starts_with(directory)) {
      ASSERT_TRUE(WriteFully(**file, 0, others.Bytes(path)).ok());
    }
  }
  clock.Advance(seconds(20));
  store->Tick();
  store->Tick();
  EXPECT_EQ(store->Stats().state, TierState::kDegraded);
  EXPECT_GT(Errors(store->Stats(), DeviceError::kProbe), 0U);
}

TEST_F(DiskSpaceTest, RecordsOfLostFilesAreCountedAndNamed) {
  std::string directory;
  {
    auto store = OpenStore(files, clock);
    for (uint64_t i = 1; i <= 30; ++i) {
      ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
    }
    ASSERT_TRUE(store->Close().ok());
    directory = store->directory();
  }
  // Ten records a segment: the first file is gone, the second one ends early.
  ASSERT_TRUE(files.Unlink(directory + "/" + SegmentName(1)).ok());
  files.Bytes(directory + "/" + SegmentName(2)).resize(kAlignment + 4 * kRecordBytes);
  const auto report = Fsck(files, directory, false, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->clean());
  ASSERT_EQ(report->problems.size(), 2U);
  EXPECT_THAT(report->problems[0], HasSubstr(SegmentName(1) + ": missing, 10 entries"));
  EXPECT_THAT(report->problems[1], HasSubstr(SegmentName(2) + ": too short, 6 entries"));
  auto store = OpenStore(files, clock);
  EXPECT_EQ(store->Stats().recovery_dropped, 16U);
  EXPECT_EQ(store->Stats().entries, 14U);
}

TEST_F(DiskSpaceTest, NamesThatNoStoreGivesAreNobodys) {
  std::string directory;
  {
    auto store = OpenStore(files, clock);
    ASSERT_TRUE(StoreNow(*store, TestStripe(1)).ok());
    ASSERT_TRUE(store->Close().ok());
    directory = store->directory();
  }
  for (const char* name : {"seg-FFFFFFFF.kv",
                           "seg-ffffffff.kv",
                           "seg-00000000.kv",
                           "seg-1.kv",
                           "journal-007.log",
                           "journal-18446744073709551615.log",
                           "index-0x1.ckpt"}) {
    ASSERT_TRUE(files.Open(directory + "/" + name, OpenMode::kCreate, false).ok()) << name;
  }
  const auto report = Fsck(files, directory, true, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->clean());
  EXPECT_EQ(report->segments, 1U);
  auto store = OpenStore(files, clock);
  ASSERT_TRUE(StoreNow(*store, TestStripe(2)).ok());
  EXPECT_TRUE(LoadNow(*store, TestStripe(1)).ok());
  EXPECT_THAT(files.Paths(), ::testing::Contains(directory + "/" + SegmentName(2)));
}

TEST_F(DiskSpaceTest, WhatSavedSessionsNeedIsNotCollected) {
  auto store = OpenStore(files, clock);
  for (uint64_t i = 1; i <= 40; ++i) {
    ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
  }
  const auto put = [&](const std::string& id, uint64_t stripe, uint64_t ttl_s, bool pinned) {
    const SessionManifest manifest{.id = id,
                                   .tokens = std::vector<TokenId>(64, 1),
                                   .stripe_keys = {TestStripe::Key(stripe)},
                                   .last_used_s = 1000,
                                   .ttl_s = ttl_s,
                                   .pinned = pinned};
    const RecordId record{SessionKey("", id), RecordKind::kSession, 0};
    ASSERT_TRUE(PutNow(*store, record, EncodeSession(manifest)).ok());
  };
  put("lasting", 3, 0, false);
  put("pinned", 17, 5, true);
  put("over", 25, 5, false);
  const std::vector<uint8_t> garbage(300, 9);
  ASSERT_TRUE(PutNow(*store, {SessionKey("", "bad"), RecordKind::kSession, 0}, garbage).ok());
  const auto kept = RetainSessions(*store, 2000);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->sessions, 2U);
  EXPECT_EQ(kept->ended, 1U);
  EXPECT_EQ(kept->damaged, 1U);
  ASSERT_TRUE(store->Collect(0).ok());
  EXPECT_TRUE(LoadNow(*store, TestStripe(3)).ok());
  EXPECT_TRUE(LoadNow(*store, TestStripe(17)).ok());
  EXPECT_FALSE(LoadNow(*store, TestStripe(4)).ok());
  EXPECT_FALSE(LoadNow(*store, TestStripe(25)).ok());
}

}  // namespace
}  // namespace spindle::kv::disk
