// Asynchronous I/O of the disk tier. Jobs are submitted by one thread and come back to it when they
// are finished; what runs in between depends on the implementation: one thread with an io_uring, a
// few threads with blocking calls, or nothing at all until Drive (deterministic, for simulation).
//
// Reads go before writes. A transfer counts as done only when every byte was transferred; a short
// one is continued at most three times. Tasks run one at a time, in order, beside the transfers.
// Thread-safety: engine-thread only; the hooks of a job run on a thread of the queue.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kv/disk/disk_files.h"

namespace spindle::kv::disk {

// One piece of work. Lives in the submitter's memory, untouched from Submit until TakeFinished
// returns it.
class IoJob {
 public:
  enum class Kind : uint8_t { kRead, kWrite, kTask };

  virtual ~IoJob() = default;

  // Hooks, on a thread of the queue. An error of Before skips the transfer.
  virtual absl::Status Before() { return absl::OkStatus(); }  // for example: compute checksums

  virtual absl::Status After() { return absl::OkStatus(); }  // for example: verify them

  virtual absl::Status RunTask() { return absl::OkStatus(); }  // kTask only; may block

  Kind kind = Kind::kTask;
  // The transfer; the file must stay open. `bytes` is the sum of the parts.
  DiskFile* file = nullptr;
  uint64_t offset = 0;
  std::array<iovec, kMaxParts> parts{};
  size_t num_parts = 0;
  uint64_t bytes = 0;
  // Valid once finished: the first error of hook or transfer. kDataLoss: the file ends too early,
  // or stayed short after the retries.
  absl::Status status;
  TimePoint finished_at{};  // not when it was taken

  // Fields of the queue.
  IoJob* next = nullptr;
  uint64_t done_bytes = 0;
  uint32_t num_short = 0;  // times that a part came back
  uint64_t issued_bytes = 0;
  uint32_t open_pieces = 0;
};

// Intrusive FIFO of jobs. Thread-compatible.
class JobList {
 public:
  void Push(IoJob* job);
  IoJob* Pop();  // null when empty
  bool Remove(const IoJob* job);

  [[nodiscard]] bool empty() const { return first_ == nullptr; }

 private:
  IoJob* first_ = nullptr;
  IoJob* last_ = nullptr;
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;

  // REQUIRES: the job is not submitted already.
  virtual void Submit(IoJob* job) = 0;

  // Takes a job back whose transfer did not begin; true: it will not come back. Cost: O(queued).
  virtual bool TryCancel(IoJob* job) = 0;

  // The oldest finished job, or null.
  virtual IoJob* TakeFinished() = 0;

  // Runs what a queue without threads has pending; returns whether there was anything.
  virtual bool Drive() { return false; }

  // Blocks until a job is finished. REQUIRES: one is submitted and not taken.
  virtual void WaitFinished() = 0;

  [[nodiscard]] virtual bool uses_ring() const { return false; }

  // Transfers that run now.
  [[nodiscard]] virtual uint32_t depth() const { return 0; }
};

struct IoQueueOptions {
  uint32_t read_depth = 32;
  uint32_t write_depth = 16;
  const Clock& clock = SteadyClock();
  // Called on a thread of the queue when a job finishes and none was finished before. Must not
  // block.
  std::function<void()> wake;
};

// Runs jobs in Drive only, on the caller's thread. To the clock, each begins when it is submitted.
[[nodiscard]] std::unique_ptr<IoQueue> NewInlineQueue(const Clock& clock);

// Runs blocking calls on a few threads; works over any DiskFiles.
[[nodiscard]] std::unique_ptr<IoQueue> NewThreadQueue(const IoQueueOptions& options);

// One ring, one thread. ERRORS: kUnavailable when the system has no io_uring or forbids it.
[[nodiscard]] absl::StatusOr<std::unique_ptr<IoQueue>> NewRingQueue(const IoQueueOptions& options);

// For implementations: hook, transfer with retries, hook, all blocking.
void PerformBlocking(IoJob* job);

// For implementations: the error of a job that ended before all was transferred.
[[nodiscard]] absl::Status ShortTransfer(const IoJob& job);

// For implementations: the finished jobs, handed from the queue's threads to the submitter.
class FinishedJobs {
 public:
  explicit FinishedJobs(const IoQueueOptions& options)
      : wake_(options.wake), clock_(options.clock) {}

  void Push(IoJob* job) SPINDLE_EXCLUDES(mutex_);
  IoJob* Take() SPINDLE_EXCLUDES(mutex_);
  void Wait() SPINDLE_EXCLUDES(mutex_);

 private:
  const std::function<void()> wake_;
  const Clock& clock_;
  Mutex mutex_;
  CondVar ready_;
  JobList jobs_ SPINDLE_GUARDED_BY(mutex_);
  std::atomic<uint32_t> count_{0};
};

}  // namespace spindle::kv::disk
