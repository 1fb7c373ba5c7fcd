// A tier that errors have switched off finds out by itself when the device works again.
#include <array>
#include <memory>

#include <gtest/gtest.h>

#include "disk_test_util.h"
#include "support/fault_files.h"

namespace spindle::kv::disk {
namespace {

using ::spindle::test::FaultFiles;
using ::spindle::test::FileClass;
using ::spindle::test::MemoryFiles;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Four segments.
constexpr uint64_t kNumStripes = 40;

class DiskOutageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store = OpenStore(files, clock);
    for (uint64_t i = 1; i <= kNumStripes; ++i) {
      ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
    }
  }

  // The device does nothing right from now on, and the tier notices.
  void Break() {
    files.SetRates({.read_error = 1, .write_error = 1, .sync_error = 1, .spare_logs = false});
    for (uint64_t i = 1; i <= 8; ++i) {
      EXPECT_TRUE(absl::IsUnavailable(LoadNow(*store, TestStripe(i))));
    }
    store->Tick();
    ASSERT_EQ(State(), TierState::kDegraded);
  }

  void Repair() { files.SetRates({}); }

  // Two ticks: one begins what is due, the next takes what it came to.
  void TickAfter(Duration time) {
    clock.Advance(time);
    store->Tick();
    store->Tick();
  }

  [[nodiscard]] TierState State() const { return store->Stats().state; }

  MemoryFiles memory;
  FaultFiles files{memory, 3};
  VirtualClock clock;
  std::unique_ptr<DiskStore> store;
};

TEST_F(DiskOutageTest, ItComesBackWhenTheDeviceDoes) {
  Break();
  EXPECT_EQ(store->Stats().outages, 1U);
  EXPECT_FALSE(store->TakesLoads());
  EXPECT_EQ(store->NextTick(), clock.Now() + seconds(10));
  TickAfter(seconds(10));
  EXPECT_EQ(State(), TierState::kDegraded);
  EXPECT_EQ(Errors(store->Stats(), DeviceError::kProbe), 1U);
  EXPECT_EQ(store->NextTick(), clock.Now() + seconds(20));
  Repair();
  TickAfter(seconds(19));
  EXPECT_EQ(State(), TierState::kDegraded) << "not before its time";
  TickAfter(seconds(1));
  EXPECT_EQ(State(), TierState::kOk);
  EXPECT_EQ(store->Stats().recoveries, 1U);
  EXPECT_TRUE(store->TakesLoads());
  EXPECT_TRUE(LoadNow(*store, TestStripe(1)).ok()) << "what was there is there";
  EXPECT_TRUE(StoreNow(*store, TestStripe(99)).ok());
  EXPECT_TRUE(store->Flush().ok());
  EXPECT_TRUE(store->CheckIntegrity().ok()) << store->CheckIntegrity();
}

TEST_F(DiskOutageTest, NothingButProbesGoesToADeviceThatIsOff) {
  Break();
  const uint64_t before = TotalFaults(files.counts());
  for (int i = 0; i < 90; ++i) {
    TickAfter(milliseconds(100));
    EXPECT_TRUE(absl::IsUnavailable(LoadNow(*store, TestStripe(1))));
    EXPECT_TRUE(absl::IsUnavailable(StoreNow(*store, TestStripe(70))));
  }
  EXPECT_EQ(TotalFaults(files.counts()), before);
  TickAfter(seconds(600));
  EXPECT_EQ(Errors(store->Stats(), DeviceError::kProbe), 1U);
  EXPECT_EQ(TotalFaults(files.counts()), before + 1);
}

TEST_F(DiskOutageTest, WhatWasNotCommittedIsCommittedAfterwards) {
  ASSERT_GT(store->Stats().undurable_entries, 0U);
  Break();
  Repair();
  TickAfter(seconds(10));
  ASSERT_EQ(State(), TierState::kOk);
  ASSERT_TRUE(store->Close().ok());
  store = OpenStore(memory, clock);
  for (uint64_t i = 1; i <= kNumStripes; ++i) {
    EXPECT_TRUE(LoadNow(*store, TestStripe(i)).ok()) << i;
  }
}

TEST_F(DiskOutageTest, AWrittenRecordIsNotCalledDurableDuringAnOutage) {
  files.SetRates({.read_error = 1});
  for (uint64_t i = 1; i <= 7; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(LoadNow(*store, TestStripe(i))));
  }
  const TestStripe early(70);
  const TestStripe late(71);
  std::array<Completion, 4> out;
  ASSERT_TRUE(store->SubmitStore(early.Store(Ack::kDurable)).ok());
  ASSERT_EQ(store->Poll(out), 0U) << "written, and waits for a commit";
  ASSERT_TRUE(store->SubmitStore(late.Store(Ack::kDurable)).ok());
  const AlignedBuffer destination(late.payload().size());
  ASSERT_TRUE(store->SubmitLoad(TestStripe(8).Load(destination.span())).ok());
  // The read fails and switches the tier off, then the write ends.
  ASSERT_EQ(store->Poll(out), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(out[i].status)) << out[i].status;
  }
}

TEST_F(DiskOutageTest, AProbeMustReadWhatItWrote) {
  Break();
  files.SetRates({.flip = 1});
  TickAfter(seconds(10));
  EXPECT_EQ(State(), TierState::kDegraded);
  EXPECT_EQ(files.counts(FileClass::kProbe).damaged_reads, 1U);
  EXPECT_EQ(Errors(store->Stats(), DeviceError::kProbe), 1U);
}

TEST_F(DiskOutageTest, AFullDeviceThatAnswersIsReadOnly) {
  Break();
  files.SetRates({.no_space = 1});
  TickAfter(seconds(10));
  EXPECT_EQ(State(), TierState::kReadOnly);
  EXPECT_TRUE(LoadNow(*store, TestStripe(kNumStripes)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(StoreNow(*store, TestStripe(70))));
}

TEST_F(DiskOutageTest, StoresGoOnWhenThereIsSpaceAgain) {
  files.SetRates({.no_space = 1});
  EXPECT_TRUE(absl::IsResourceExhausted(StoreNow(*store, TestStripe(70))));
  store->Tick();
  EXPECT_EQ(State(), TierState::kReadOnly);
  TickAfter(seconds(60));
  EXPECT_EQ(State(), TierState::kOk);
  EXPECT_TRUE(absl::IsResourceExhausted(StoreNow(*store, TestStripe(70)))) << "the next try";
  EXPECT_TRUE(LoadNow(*store, TestStripe(kNumStripes)).ok());
  Repair();
  EXPECT_TRUE(absl::IsResourceExhausted(StoreNow(*store, TestStripe(70)))) << "it rests";
  TickAfter(seconds(60));
  EXPECT_TRUE(StoreNow(*store, TestStripe(70)).ok());
  EXPECT_EQ(Errors(store->Stats(), DeviceError::kWriteFull), 2U);
  EXPECT_EQ(files.counts().no_space, 2U);
}

TEST_F(DiskOutageTest, AJournalWithoutSpaceIsTriedLessAndLessAndLeavesNoFiles) {
  ASSERT_TRUE(store->Flush().ok());
  ASSERT_TRUE(StoreNow(*store, TestStripe(70)).ok());
  const size_t num_files = memory.Paths().size();
  files.SetRates({.no_space = 1, .spare_logs = false});
  for (int i = 0; i < 600; ++i) {
    TickAfter(milliseconds(100));
  }
  EXPECT_EQ(State(), TierState::kReadOnly);
  // After 0.1, 0.2, 0.4 … seconds, then every ten.
  EXPECT_GE(Errors(store->Stats(), DeviceError::kLogFull), 10U);
  EXPECT_LE(Errors(store->Stats(), DeviceError::kLogFull), 13U);
  EXPECT_EQ(memory.Paths().size(), num_files);
  Repair();
  TickAfter(seconds(10));
  EXPECT_EQ(store->Stats().undurable_entries, 0U);
}

}  // namespace
}  // namespace spindle::kv::disk
