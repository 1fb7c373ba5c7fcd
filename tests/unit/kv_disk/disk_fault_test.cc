// Operations over files that fail from a seed: whatever happens, no wrong byte is served, every
// fault is counted where it belongs, and the tier goes on or switches itself off.
#include <memory>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "disk_test_util.h"
#include "support/fault_files.h"

namespace spindle::kv::disk {
namespace {

using ::spindle::test::FaultCounts;
using ::spindle::test::FaultFiles;
using ::spindle::test::FaultRates;
using ::spindle::test::MemoryFiles;

class DiskFaultTest : public ::testing::Test {
 protected:
  // Random stores and loads; returns how many loads were good.
  uint64_t Run(DiskStore& store, int num_operations, uint64_t seed) {
    std::mt19937_64 random(seed);
    uint64_t good = 0;
    for (int i = 0; i < num_operations; ++i) {
      const TestStripe stripe(1 + random() % 300);
      const absl::Status status =
          random() % 3 == 0 ? StoreNow(store, stripe) : LoadNow(store, stripe);
      EXPECT_FALSE(absl::IsInternal(status)) << status;
      good += status.ok() ? 1U : 0U;
      clock.Advance(std::chrono::milliseconds(40));
      if (i % 4 == 0) {
        store.Tick();
      }
    }
    return good;
  }

  MemoryFiles memory;
  FaultFiles files{memory, 11};
  VirtualClock clock;
};

TEST_F(DiskFaultTest, FlippedBitsAreAlwaysFound) {
  auto store = OpenStore(files, clock);
  files.SetRates({.flip = 0.05});
  EXPECT_GT(Run(*store, 4000, 1), 1000U);
  const DiskStats stats = store->Stats();
  const FaultCounts counts = files.counts();
  const uint64_t found = Failures(stats, LoadFailure::kHeader) +
                         Failures(stats, LoadFailure::kMismatch) +
                         Failures(stats, LoadFailure::kPayload);
  EXPECT_GT(counts.read_flips, 50U);
  EXPECT_GT(counts.write_flips, 20U);
  // Each flip of a read record is found at once, each of a written one when it is loaded.
  EXPECT_GT(counts.damaged_reads, counts.read_flips);
  EXPECT_EQ(found, counts.damaged_reads);
  EXPECT_EQ(Errors(stats, DeviceError::kReadDamage), found);
  EXPECT_EQ(stats.tombstones, found);
  EXPECT_EQ(stats.state, TierState::kOk);
}

TEST_F(DiskFaultTest, ShortTransfersAreContinued) {
  auto store = OpenStore(files, clock);
  files.SetRates({.short_read = 0.1, .short_write = 0.1});
  Run(*store, 3000, 2);
  const FaultCounts counts = files.counts();
  EXPECT_GT(counts.short_reads + counts.short_writes, 150U);
  const DiskStats stats = store->Stats();
  EXPECT_EQ(stats.short_reads, counts.short_reads);
  EXPECT_EQ(stats.short_writes, counts.short_writes);
  // Four short ones in a row are rare.
  EXPECT_LE(Failures(stats, LoadFailure::kShort) + Skips(stats, StoreSkip::kIo), 5U);
  EXPECT_EQ(stats.state, TierState::kOk);
}

TEST_F(DiskFaultTest, AFullDeviceStopsStoresOnly) {
  auto store = OpenStore(files, clock);
  for (uint64_t i = 1; i <= 50; ++i) {
    ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
  }
  files.SetRates({.no_space = 1.0});
  EXPECT_TRUE(absl::IsResourceExhausted(StoreNow(*store, TestStripe(99))));
  EXPECT_EQ(files.counts().no_space, 1U);
  EXPECT_TRUE(LoadNow(*store, TestStripe(50)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(StoreNow(*store, TestStripe(98))));
  EXPECT_EQ(files.counts().no_space, 1U) << "the device is left in peace for a minute";
  store->Tick();
  EXPECT_EQ(store->Stats().state, TierState::kReadOnly);
  EXPECT_EQ(Skips(store->Stats(), StoreSkip::kNoSpace), 2U);
  EXPECT_EQ(Skips(store->Stats(), StoreSkip::kIo), 0U);
}

TEST_F(DiskFaultTest, ADeviceThatStaysFullCostsOneSegmentAtMost) {
  for (const uint64_t num_stripes : {uint64_t{5}, uint64_t{25}}) {  // of one segment, and of three
    MemoryFiles fresh;
    FaultFiles full(fresh, 12);
    auto store = OpenStore(full, clock);
    for (uint64_t i = 1; i <= num_stripes; ++i) {
      ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
    }
    full.SetRates({.no_space = 1.0});
    for (uint64_t minute = 0; minute < 10; ++minute) {
      EXPECT_TRUE(absl::IsResourceExhausted(StoreNow(*store, TestStripe(100 + minute))));
      for (int tick = 0; tick < 62; ++tick) {
        clock.Advance(std::chrono::seconds(1));
        store->Tick();
      }
    }
    EXPECT_EQ(full.counts().no_space, 10U);
    uint64_t kept = 0;
    for (uint64_t i = 1; i <= num_stripes; ++i) {
      kept += LoadNow(*store, TestStripe(i)).ok() ? 1U : 0U;
    }
    EXPECT_LE(store->Stats().segments, 4U) << "those without records are removed";
    EXPECT_GE(kept, num_stripes == 5 ? 5U : 15U);
  }
}

TEST_F(DiskFaultTest, AFullDeviceTakesNothingThatMustBeKept) {
  auto store = OpenStore(files, clock);
  for (uint64_t i = 1; i <= 25; ++i) {
    ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
  }
  store->Retain(TestStripe::Key(1));
  files.SetRates({.no_space = 1.0});
  EXPECT_TRUE(absl::IsResourceExhausted(StoreNow(*store, TestStripe(99))));
  for (int tick = 0; tick < 20; ++tick) {
    clock.Advance(std::chrono::milliseconds(500));
    store->Tick();
  }
  EXPECT_TRUE(LoadNow(*store, TestStripe(1)).ok());
}

// The collector cannot move them, so it must not drop the segment around them.
TEST_F(DiskFaultTest, WhatIsKeptStaysWhereverTheDeviceFails) {
  DiskOptions options = SmallOptions();
  options.max_errors = 64;
  options.full_pause = std::chrono::seconds(60);
  const FaultRates all_writes = {.write_error = 1};
  const FaultRates all_space = {.no_space = 1};
  for (const FaultRates& rates : {all_space, all_writes}) {
    MemoryFiles fresh;
    FaultFiles faulty(fresh, 3);
    auto store = OpenStore(faulty, clock, options);
    const RecordId session{TestStripe::Key(77), RecordKind::kSession, 0};
    const std::vector<uint8_t> manifest(700, 3);
    store->Retain(TestStripe::Key(5));
    ASSERT_TRUE(PutNow(*store, session, manifest).ok());
    for (uint64_t i = 1; i <= 20; ++i) {
      ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
    }
    ASSERT_TRUE(store->Flush().ok());
    faulty.SetRates(rates);
    EXPECT_FALSE(StoreNow(*store, TestStripe(100)).ok());
    for (int i = 0; i < 100; ++i) {
      clock.Advance(std::chrono::seconds(1));
      store->Tick();
    }
    static_cast<void>(store->Collect(0));
    EXPECT_EQ(*FetchNow(*store, session), manifest);
    EXPECT_TRUE(LoadNow(*store, TestStripe(5)).ok());
    EXPECT_TRUE(store->CheckIntegrity().ok()) << store->CheckIntegrity();
    faulty.SetRates({});
    clock.Advance(std::chrono::seconds(61));
    ASSERT_TRUE(store->Collect(0).ok());
    EXPECT_GT(store->Stats().copied_records, 0U);
    EXPECT_EQ(store->Stats().entries, 2U);
    EXPECT_EQ(*FetchNow(*store, session), manifest);
    EXPECT_TRUE(LoadNow(*store, TestStripe(5)).ok());
  }
}

TEST_F(DiskFaultTest, ManyErrorsInAMinuteSwitchTheTierOff) {
  auto store = OpenStore(files, clock);
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(StoreNow(*store, TestStripe(i)).ok());
  }
  files.SetRates({.read_error = 1.0});
  for (uint64_t i = 1; i <= 7; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(LoadNow(*store, TestStripe(i))));
  }
  clock.Advance(std::chrono::seconds(61));
  EXPECT_TRUE(absl::IsUnavailable(LoadNow(*store, TestStripe(8))));
  EXPECT_EQ(store->Stats().state, TierState::kOk) << "the others are older than a minute";
  for (uint64_t i = 9; i <= 15; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(LoadNow(*store, TestStripe(i))));
  }
  store->Tick();
  EXPECT_EQ(store->Stats().state, TierState::kDegraded);
  const uint64_t errors = files.counts().read_errors;
  EXPECT_EQ(errors, 15U);
  EXPECT_EQ(Failures(store->Stats(), LoadFailure::kIo), errors);
  EXPECT_TRUE(absl::IsUnavailable(LoadNow(*store, TestStripe(16))));
  EXPECT_TRUE(absl::IsUnavailable(StoreNow(*store, TestStripe(99))));
  EXPECT_EQ(files.counts().read_errors, errors);
  EXPECT_FALSE(store->Flush().ok());
}

TEST_F(DiskFaultTest, AFailedSyncTakesBackWhatItCovered) {
  auto store = OpenStore(files, clock);
  ASSERT_TRUE(StoreNow(*store, TestStripe(1)).ok());
  ASSERT_TRUE(store->Flush().ok());
  const TestStripe second(2);
  const auto ticket = store->SubmitStore(second.Store(Ack::kDurable));
  store->Tick();
  files.SetRates({.sync_error = 1.0});
  clock.Advance(std::chrono::milliseconds(200));
  const Completion completion = WaitFor(*store, *ticket);
  EXPECT_TRUE(absl::IsUnavailable(completion.status)) << completion.status;
  EXPECT_FALSE(store->Contains(second.id));
  EXPECT_TRUE(LoadNow(*store, TestStripe(1)).ok());
  files.SetRates({});
  EXPECT_TRUE(StoreNow(*store, second).ok()) << "into a new segment";
  EXPECT_TRUE(store->Flush().ok());
  EXPECT_TRUE(LoadNow(*store, second).ok());
}

TEST_F(DiskFaultTest, AnUndeletableFileIsPutAside) {
  DiskOptions options = SmallOptions();
  options.capacity_bytes = 1 << 20;
  auto store = OpenStore(files, clock, options);
  files.SetRates({.unlink_error = 0.2});
  for (uint64_t i = 1; i <= 300; ++i) {
    StoreNow(*store, TestStripe(i)).IgnoreError();  // may be refused while space is made
    for (int tick = 0; tick < 3; ++tick) {
      clock.Advance(std::chrono::milliseconds(100));
      store->Tick();
    }
  }
  EXPECT_GT(files.counts().unlink_errors, 0U);
  EXPECT_EQ(store->Stats().quarantined_segments, files.counts().unlink_errors);
  EXPECT_GT(store->Stats().collected_segments, files.counts().unlink_errors);
  EXPECT_TRUE(store->CheckIntegrity().ok()) << store->CheckIntegrity();
}

TEST_F(DiskFaultTest, TenThousandOperationsWithAllFaultsServeNothingWrong) {
  DiskOptions options = SmallOptions();
  options.capacity_bytes = 3 << 20;
  uint64_t good = 0;
  uint64_t lives = 0;
  for (; lives < 20; ++lives) {
    auto store = OpenStore(files, clock, options);
    ASSERT_NE(store, nullptr);
    files.SetRates({.read_error = 0.002,
                    .write_error = 0.002,
                    .short_read = 0.05,
                    .short_write = 0.05,
                    .no_space = 0.0005,
                    .flip = 0.03,
                    .sync_error = 0.001,
                    .unlink_error = 0.01,
                    .spare_logs = false});
    good += Run(*store, 500, lives);
    EXPECT_TRUE(store->CheckIntegrity().ok()) << store->CheckIntegrity();
    files.SetRates({});
  }
  EXPECT_GT(good, 3000U);
  const FaultCounts counts = files.counts();
  EXPECT_GT(counts.read_errors, 0U);
  EXPECT_GT(counts.write_errors, 0U);
  EXPECT_GT(TotalFaults(counts), 200U);
}

}  // namespace
}  // namespace spindle::kv::disk
