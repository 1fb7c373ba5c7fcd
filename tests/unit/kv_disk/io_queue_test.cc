// The three ways of running I/O over real files give the same results; with threads of their own.
#include "kv/disk/io_queue.h"

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/mutex.h"
#include "disk_test_util.h"
#include "support/fault_files.h"
#include "support/temp_folder.h"

namespace spindle::kv::disk {
namespace {

// Blocks transfers of segments while the gate is shut.
class GateFiles final : public DiskFiles {
 public:
  explicit GateFiles(DiskFiles& below) : below_(below) {}

  void Shut() {
    MutexLock lock(mutex_);
    open_ = false;
  }

  void Open() {
    {
      MutexLock lock(mutex_);
      open_ = true;
    }
    ready_.NotifyAll();
  }

  // Blocks until a transfer stands at the gate.
  void AwaitWaiter() {
    MutexLock lock(mutex_);
    while (waiting_ == 0) {
      ready_.Wait(mutex_);
    }
  }

  void Pass(const std::string& path) {
    if (!path.ends_with(".kv")) {
      return;
    }
    MutexLock lock(mutex_);
    ++waiting_;
    ready_.NotifyAll();
    while (!open_) {
      ready_.Wait(mutex_);
    }
    --waiting_;
  }

  absl::StatusOr<std::unique_ptr<DiskFile>> Open(const std::string& path,
                                                 OpenMode mode,
                                                 bool direct) override;

  absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    return below_.List(directory);
  }

  absl::Status MakeDirectory(const std::string& directory) override {
    return below_.MakeDirectory(directory);
  }

  absl::Status SyncDirectory(const std::string& directory) override {
    return below_.SyncDirectory(directory);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return below_.Rename(from, to);
  }

  absl::Status Unlink(const std::string& path) override { return below_.Unlink(path); }

  absl::StatusOr<FreeSpaceInfo> FreeSpace(const std::string& directory) override {
    return below_.FreeSpace(directory);
  }

  absl::StatusOr<std::unique_ptr<DiskLock>> Lock(const std::string& path) override {
    return below_.Lock(path);
  }

  std::array<uint8_t, 16> UniqueId() override { return below_.UniqueId(); }

 private:
  DiskFiles& below_;
  Mutex mutex_;
  CondVar ready_;
  bool open_ SPINDLE_GUARDED_BY(mutex_) = true;
  int waiting_ SPINDLE_GUARDED_BY(mutex_) = 0;
};

class GateFile final : public DiskFile {
 public:
  GateFile(GateFiles& gate, std::unique_ptr<DiskFile> below)
      : DiskFile(below->path()), gate_(gate), below_(std::move(below)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<const iovec> parts) override {
    gate_.Pass(path());
    return below_->ReadAt(offset, parts);
  }

  absl::StatusOr<size_t> WriteAt(uint64_t offset, std::span<const iovec> parts) override {
    return below_->WriteAt(offset, parts);
  }

  absl::Status Sync() override { return below_->Sync(); }

  absl::StatusOr<uint64_t> Size() override { return below_->Size(); }

 private:
  GateFiles& gate_;
  const std::unique_ptr<DiskFile> below_;
};

absl::StatusOr<std::unique_ptr<DiskFile>> GateFiles::Open(const std::string& path,
                                                          OpenMode mode,
                                                          bool direct) {
  absl::StatusOr<std::unique_ptr<DiskFile>> file = below_.Open(path, mode, direct);
  if (!file.ok()) {
    return file.status();
  }
  return std::make_unique<GateFile>(*this, *std::move(file));
}

// Stores, loads with many at once, restart; returns what was found per stripe.
std::vector<bool> Exercise(IoMode mode, DiskStats* stats) {
  const test::TempFolder folder;
  DiskOptions options = SmallOptions(mode);
  options.path = folder.path();
  std::vector<TestStripe> stripes;
  for (uint64_t i = 1; i <= 64; ++i) {
    stripes.emplace_back(i);
  }
  {
    auto store = OpenStore(SystemFiles(), SteadyClock(), options);
    for (const TestStripe& stripe : stripes) {
      if (stripe.Store().tag % 5 != 0) {
        EXPECT_TRUE(store->SubmitStore(stripe.Store()).ok());
      }
    }
    EXPECT_TRUE(store->Flush().ok());
  }
  auto store = OpenStore(SystemFiles(), SteadyClock(), options);
  const AlignedBuffer memory(64 * 8192);
  std::vector<bool> found(65);
  size_t pending = 0;
  for (const TestStripe& stripe : stripes) {
    const uint64_t number = stripe.Store().tag;
    const std::span<uint8_t> place = memory.span().subspan((number - 1) * 8192, 8192);
    if (store->SubmitLoad(stripe.Load(place)).ok()) {
      ++pending;
    }
  }
  std::array<Completion, 8> out;
  while (pending > 0) {
    const size_t count = store->Poll(out);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t number = out[i].tag;
      EXPECT_TRUE(out[i].status.ok()) << out[i].status;
      EXPECT_TRUE(stripes[number - 1].Equals(memory.span().subspan((number - 1) * 8192, 8192)));
      found[number] = true;
    }
    pending -= count;
  }
  EXPECT_TRUE(store->CheckIntegrity().ok()) << store->CheckIntegrity();
  *stats = store->Stats();

  struct stat info {};

  EXPECT_EQ(stat((store->directory() + "/STORE").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  EXPECT_EQ(stat(store->directory().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0700U);
  return found;
}

TEST(IoModes, GiveTheSameResults) {
  DiskStats ring;
  DiskStats threads;
  DiskStats inline_mode;
  const std::vector<bool> with_ring = Exercise(IoMode::kAuto, &ring);
  const std::vector<bool> with_threads = Exercise(IoMode::kThreads, &threads);
  const std::vector<bool> with_inline = Exercise(IoMode::kInline, &inline_mode);
  EXPECT_EQ(with_ring, with_threads);
  EXPECT_EQ(with_ring, with_inline);
  EXPECT_EQ(std::count(with_ring.begin(), with_ring.end(), true), 52);
  EXPECT_FALSE(threads.ring_active);
  EXPECT_EQ(ring.loads, threads.loads);
  EXPECT_EQ(ring.device_read_bytes, threads.device_read_bytes);
  RecordProperty("ring_active", ring.ring_active ? "yes" : "no");
  RecordProperty("direct_active", ring.direct_active ? "yes" : "no");
}

TEST(IoModes, RingReportsErrorsAndShortFiles) {
  const test::TempFolder folder;
  auto queue = NewRingQueue({});
  if (!queue.ok()) {
    GTEST_SKIP() << "no io_uring here: " << queue.status();
  }
  auto file = SystemFiles().Open(folder.path() + "/f", OpenMode::kCreate, false);
  ASSERT_TRUE(file.ok());
  const AlignedBuffer buffer(2 * kAlignment);
  ASSERT_TRUE(WriteFully(**file, 0, buffer.span().first(kAlignment)).ok());
  IoJob job;
  job.kind = IoJob::Kind::kRead;
  job.file = file->get();
  job.parts[0] = {buffer.data(), kAlignment};
  job.parts[1] = {buffer.data() + kAlignment, kAlignment};
  job.num_parts = 2;
  job.bytes = 2 * kAlignment;
  (*queue)->Submit(&job);
  (*queue)->WaitFinished();
  ASSERT_EQ((*queue)->TakeFinished(), &job);
  EXPECT_TRUE(absl::IsDataLoss(job.status)) << job.status;
  auto read_only = SystemFiles().Open(folder.path() + "/f", OpenMode::kRead, false);
  IoJob write;
  write.kind = IoJob::Kind::kWrite;
  write.file = read_only->get();
  write.parts[0] = {buffer.data(), kAlignment};
  write.num_parts = 1;
  write.bytes = kAlignment;
  (*queue)->Submit(&write);
  (*queue)->WaitFinished();
  ASSERT_EQ((*queue)->TakeFinished(), &write);
  EXPECT_FALSE(write.status.ok());
}

TEST(IoModes, ALateOrCancelledLoadKeepsItsMemoryUntilTheDeviceIsDone) {
  const test::TempFolder folder;
  GateFiles gate(SystemFiles());
  VirtualClock clock;
  DiskOptions options = SmallOptions(IoMode::kThreads);
  options.path = folder.path();
  auto store = OpenStore(gate, clock, options);
  const TestStripe stripe(1);
  ASSERT_TRUE(StoreNow(*store, stripe).ok());
  const AlignedBuffer memory(8192);
  std::array<Completion, 4> out;
  for (const bool late : {true, false}) {
    gate.Shut();
    LoadRequest request = stripe.Load(memory.span());
    request.deadline = late ? clock.Now() + std::chrono::milliseconds(10) : TimePoint::max();
    const auto ticket = store->SubmitLoad(request);
    ASSERT_TRUE(ticket.ok());
    gate.AwaitWaiter();
    clock.Advance(std::chrono::milliseconds(20));
    if (!late) {
      store->Cancel(*ticket);
    }
    store->Tick();
    const size_t notices = store->Poll(out);
    ASSERT_EQ(notices, late ? 1U : 0U);
    if (late) {
      EXPECT_FALSE(out[0].final);
      EXPECT_TRUE(absl::IsDeadlineExceeded(out[0].status));
    }
    gate.Open();
    const Completion last = WaitFor(*store, *ticket);
    EXPECT_EQ(last.status.code(),
              late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kCancelled);
    EXPECT_TRUE(store->Contains(stripe.id)) << "late is not bad";
  }
}

TEST(IoModes, ThreadsOverFaultyFilesServeNothingWrong) {
  const test::TempFolder folder;
  test::FaultFiles files(SystemFiles(), 21);
  DiskOptions options = SmallOptions(IoMode::kThreads);
  options.path = folder.path();
  options.max_errors = 64;
  options.commit_interval = std::chrono::milliseconds(1);
  auto store = OpenStore(files, SteadyClock(), options);
  files.SetRates({.short_read = 0.05, .short_write = 0.05, .flip = 0.05});
  std::mt19937_64 random(4);
  for (int i = 0; i < 1500; ++i) {
    const TestStripe stripe(1 + random() % 40);
    const absl::Status status =
        random() % 2 == 0 ? StoreNow(*store, stripe) : LoadNow(*store, stripe);
    ASSERT_FALSE(absl::IsInternal(status)) << status;
  }
  EXPECT_GT(TotalFaults(files.counts()), 50U);
  EXPECT_TRUE(store->Close().ok());
}

}  // namespace
}  // namespace spindle::kv::disk
