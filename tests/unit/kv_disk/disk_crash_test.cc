// Crash simulation: a store runs over files that record every write and sync; the disk as a crash
// at every moment would have left it is opened again. No invalid stripe is served, no durable one
// is lost, and the counters equal the files.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "disk_test_util.h"
#include "kv/disk/fsck.h"

namespace spindle::kv::disk {
namespace {

using ::spindle::test::MemoryFiles;

constexpr uint64_t kNumStripes = 60;

// What the store had promised when `event` calls had been recorded.
struct Promise {
  size_t event;
  uint64_t stripe;
  bool erased;  // durably, else stored durably
};

DiskOptions CrashOptions() {
  DiskOptions options = SmallOptions();
  options.segment_bytes = 64 << 10;
  options.capacity_bytes = 512 << 10;
  options.checkpoint_journal_bytes = 24 << 10;
  return options;
}

RecordId SessionId() {
  return {TestStripe::Key(5000), RecordKind::kSession, 0};
}

// Runs stores, erasures, commits, checkpoints and collection; collects promises.
class Life {
 public:
  explicit Life(MemoryFiles& disk) : files(disk) {
    files.StartRecording();
    store = OpenStore(files, clock, CrashOptions());
  }

  void Run() {
    std::mt19937_64 random(7);
    for (uint64_t i = 1; i <= kNumStripes; ++i) {
      const TestStripe stripe(i);
      // Replaced again and again, never dropped: covered by the commit of the stripe behind it.
      std::vector<uint8_t> version(100, 0);
      version[0] = static_cast<uint8_t>(i);
      const bool put = store->SubmitPut(SessionId(), version, Ack::kWritten, 0).ok();
      const absl::StatusOr<Ticket> ticket = store->SubmitStore(stripe.Store(Ack::kDurable));
      for (int tick = 0; tick < 6 && !ticket.ok(); ++tick) {
        Step();  // no space: the collector works
      }
      if (i % 3 == 0) {
        // Not committed with the one before it.
        Step();
      }
      if (ticket.ok() && WaitForDurable(*ticket)) {
        promises.push_back({files.num_events(), i, false});
        if (put) {
          versions.emplace_back(files.num_events(), i);
        }
      }
      if (random() % 8 == 0) {
        const uint64_t victim = 1 + random() % i;
        if (store->Erase(TestStripe(victim).id) && store->Flush().ok()) {
          promises.push_back({files.num_events(), victim, true});
        }
      }
    }
    EXPECT_TRUE(store->Close().ok());
  }

  MemoryFiles& files;
  VirtualClock clock;
  std::unique_ptr<DiskStore> store;
  std::vector<Promise> promises;
  // Versions of the session that are durable from an event on.
  std::vector<std::pair<size_t, uint64_t>> versions;
  // Stripes that the collector may have dropped: no promise holds for them from then on.
  std::vector<std::pair<size_t, uint64_t>> dropped;

 private:
  void Step() {
    clock.Advance(std::chrono::milliseconds(60));
    store->Tick();
    NoteDropped();
  }

  bool WaitForDurable(Ticket ticket) {
    std::array<Completion, 8> out;
    for (int round = 0; round < 50; ++round) {
      Step();
      const size_t count = store->Poll(out);
      for (size_t i = 0; i < count; ++i) {
        if (out[i].ticket == ticket) {
          return out[i].status.ok();
        }
      }
    }
    ADD_FAILURE() << "a store never became durable";
    return false;
  }

  void NoteDropped() {
    for (const Promise& promise : promises) {
      if (!promise.erased && !store->Contains(TestStripe(promise.stripe).id)) {
        dropped.emplace_back(files.num_events(), promise.stripe);
      }
    }
  }
};

// Whether the stripe must be there, must not be there, or may be either, after a crash behind
// `event`.
enum class Expected : uint8_t { kPresent, kAbsent, kEither };

Expected ExpectedAt(const Life& life, uint64_t stripe, size_t event) {
  Expected expected = Expected::kEither;
  for (const Promise& promise : life.promises) {
    if (promise.stripe == stripe && promise.event <= event) {
      expected = promise.erased ? Expected::kAbsent : Expected::kPresent;
    }
  }
  if (expected != Expected::kPresent) {
    return expected;
  }
  // Erased or collected in the same stretch: the removal may be on disk before it was noticed.
  for (const auto& [at, number] : life.dropped) {
    if (number == stripe && at <= event + 64) {
      return Expected::kEither;
    }
  }
  for (const Promise& promise : life.promises) {
    if (promise.stripe == stripe && promise.erased) {
      return Expected::kEither;
    }
  }
  return expected;
}

void CheckCrash(const Life& life, size_t event, MemoryFiles::Unsynced unsynced, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto disk = life.files.CrashAt(event, unsynced, random);
  VirtualClock clock;
  absl::StatusOr<std::unique_ptr<DiskStore>> opened =
      DiskStore::Open(CrashOptions(), SmallIdentity(), *disk, clock, nullptr);
  ASSERT_TRUE(opened.ok()) << opened.status();
  DiskStore& store = **opened;
  const absl::Status integrity = store.CheckIntegrity();
  ASSERT_TRUE(integrity.ok()) << integrity;
  ASSERT_FALSE(store.recovery().incomplete);
  for (uint64_t i = 1; i <= kNumStripes; ++i) {
    const absl::Status status = LoadNow(store, TestStripe(i));
    ASSERT_FALSE(absl::IsInternal(status)) << "stripe " << i << ": " << status;
    switch (ExpectedAt(life, i, event)) {
      case Expected::kPresent:
        ASSERT_TRUE(status.ok()) << "durable stripe " << i << " is lost: " << status;
        break;
      case Expected::kAbsent:
        ASSERT_FALSE(status.ok()) << "erased stripe " << i << " is back";
        break;
      case Expected::kEither:
        break;
    }
  }
  uint64_t version = 0;
  for (const auto& [at, number] : life.versions) {
    version = at <= event ? number : version;
  }
  const absl::StatusOr<std::vector<uint8_t>> session = FetchNow(store, SessionId());
  if (version > 0) {
    ASSERT_TRUE(session.ok()) << "version " << version << " is lost: " << session.status();
    ASSERT_GE((*session)[0], version) << "an older version is back";
  }
  const auto report = Fsck(*disk, store.directory(), false, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_TRUE(report->clean()) << (report->problems.empty() ? "" : report->problems[0]);
  // It goes on working.
  const TestStripe fresh(1000);
  const absl::Status stored = StoreNow(store, fresh);
  ASSERT_TRUE(stored.ok() || absl::IsResourceExhausted(stored)) << stored;
  ASSERT_TRUE(store.Close().ok());
}

void CheckEvery(size_t step, const std::vector<MemoryFiles::Unsynced>& kinds) {
  MemoryFiles files;
  ASSERT_TRUE(files.MakeDirectory("/").ok());
  Life life(files);
  life.Run();
  ASSERT_GT(life.promises.size(), 40U);
  ASSERT_GT(life.store->Stats().checkpoints, 2U);
  ASSERT_GT(life.store->Stats().collected_segments, 2U);
  ASSERT_GT(files.num_events(), 250U);
  for (const MemoryFiles::Unsynced unsynced : kinds) {
    for (size_t event = 0; event <= files.num_events(); event += step) {
      CheckCrash(life, event, unsynced, event * 31 + static_cast<uint64_t>(unsynced));
      if (::testing::Test::HasFailure()) {
        FAIL() << "crash behind event " << event << " of " << files.num_events() << ", kind "
               << static_cast<int>(unsynced);
      }
    }
  }
}

#ifdef SPINDLE_DISK_SLOW_TESTS

TEST(DiskCrashSweep, EveryPrefixWithEveryLossRecovers) {
  CheckEvery(1,
             {MemoryFiles::Unsynced::kLost,
              MemoryFiles::Unsynced::kKept,
              MemoryFiles::Unsynced::kReordered,
              MemoryFiles::Unsynced::kReordered,
              MemoryFiles::Unsynced::kTorn,
              MemoryFiles::Unsynced::kTorn});
}

#else

TEST(DiskCrash, APrefixWithLostOrTornWritesRecovers) {
  CheckEvery(3, {MemoryFiles::Unsynced::kLost, MemoryFiles::Unsynced::kTorn});
}

TEST(DiskCrash, APrefixWithKeptOrReorderedWritesRecovers) {
  CheckEvery(5, {MemoryFiles::Unsynced::kKept, MemoryFiles::Unsynced::kReordered});
}

#endif

}  // namespace
}  // namespace spindle::kv::disk
