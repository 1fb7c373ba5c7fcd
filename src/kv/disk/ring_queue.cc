// IoQueue over one io_uring that belongs to one thread.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <liburing.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/status_macros.h"
#include "kv/disk/blocking_workers.h"
#include "kv/disk/io_queue.h"

namespace spindle::kv::disk {
namespace {

// Times that the kernel may give a transfer back undone before that counts as an error.
constexpr uint32_t kMaxInterruptions = 3;

class RingQueue final : public IoQueue {
 public:
  explicit RingQueue(const IoQueueOptions& options)
      : read_depth_(options.read_depth),
        write_depth_(options.write_depth),
        finished_(options.wake),
        tasks_("kv-disk-task", 1, &finished_) {}

  ~RingQueue() override {
    if (!thread_.joinable()) {
      return;
    }
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    Ring();
    thread_.join();
    io_uring_queue_exit(&ring_);
    close(bell_);
  }

  RingQueue(const RingQueue&) = delete;
  RingQueue& operator=(const RingQueue&) = delete;

  absl::Status Start() {
    // One more place for reading the bell.
    const int error = -io_uring_queue_init(read_depth_ + write_depth_ + 1, &ring_, 0);
    if (error != 0) {
      return ErrnoStatus(error, "io_uring");
    }
    bell_ = eventfd(0, EFD_CLOEXEC);
    if (bell_ < 0) {
      const int bell_error = errno;
      io_uring_queue_exit(&ring_);
      return ErrnoStatus(bell_error, "eventfd");
    }
    thread_ = std::thread([this] { Work(); });
    return absl::OkStatus();
  }

  void Submit(IoJob* job) override {
    if (job->kind == IoJob::Kind::kTask) {
      tasks_.Submit(job);
      return;
    }
    SPINDLE_CHECK(job->file->descriptor() >= 0);
    bool first = false;
    {
      MutexLock lock(mutex_);
      first = reads_.empty() && writes_.empty();
      (job->kind == IoJob::Kind::kRead ? reads_ : writes_).Push(job);
    }
    // Otherwise the thread has been told already, or looks again when a transfer ends.
    if (first) {
      Ring();
    }
  }

  bool TryCancel(IoJob* job) override {
    MutexLock lock(mutex_);
    return (job->kind == IoJob::Kind::kRead ? reads_ : writes_).Remove(job);
  }

  IoJob* TakeFinished() override { return finished_.Take(); }

  void WaitFinished() override { finished_.Wait(); }

  [[nodiscard]] bool uses_ring() const override { return true; }

  [[nodiscard]] uint32_t depth() const override { return depth_.load(std::memory_order_relaxed); }

 private:
  void Ring() {
    const uint64_t one = 1;
    // A full counter means that the thread will wake anyway.
    if (write(bell_, &one, sizeof(one)) != sizeof(one)) {
      SPINDLE_CHECK(errno == EAGAIN);
    }
  }

  // The next job that may start, or null. Sets *stop when there will be no more.
  IoJob* TakeQueued(bool* stop) SPINDLE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (num_reads_ < read_depth_ && !reads_.empty()) {
      return reads_.Pop();
    }
    if (num_writes_ < write_depth_ && !writes_.empty()) {
      return writes_.Pop();
    }
    *stop = stop_ && reads_.empty() && writes_.empty();
    return nullptr;
  }

  // Puts the rest of a job's transfer into the ring.
  void Prepare(IoJob* job) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    SPINDLE_CHECK(entry != nullptr);  // the ring has a place for every running transfer
    std::array<iovec, kMaxParts> rest;
    job->num_parts =
        SkipParts(std::span(job->parts).first(job->num_parts), std::exchange(skip_bytes_, 0), rest);
    job->parts = rest;
    const auto num_parts = static_cast<unsigned>(job->num_parts);
    const uint64_t at = job->offset + job->done_bytes;
    if (job->kind == IoJob::Kind::kRead) {
      io_uring_prep_readv(entry, job->file->descriptor(), job->parts.data(), num_parts, at);
    } else {
      io_uring_prep_writev(entry, job->file->descriptor(), job->parts.data(), num_parts, at);
    }
    io_uring_sqe_set_data(entry, job);
  }

  // Moves queued jobs into the ring; returns whether the queue is to end.
  bool StartQueued() {
    bool stop = false;
    while (IoJob* const job = TakeQueued(&stop)) {
      job->done_bytes = 0;
      job->attempts = 0;
      job->status = job->Before();
      if (!job->status.ok()) {
        finished_.Push(job);
        continue;
      }
      ++(job->kind == IoJob::Kind::kRead ? num_reads_ : num_writes_);
      Prepare(job);
    }
    depth_.store(num_reads_ + num_writes_, std::memory_order_relaxed);
    return stop;
  }

  void ListenToBell() {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    SPINDLE_CHECK(entry != nullptr);
    io_uring_prep_read(entry, bell_, &bell_value_, sizeof(bell_value_), 0);
    io_uring_sqe_set_data(entry, nullptr);
  }

  // One transfer came back with `result`, bytes or a negative error.
  void OnResult(IoJob* job, int result) {
    bool complete = true;
    if ((result == -EINTR || result == -EAGAIN) && ++job->attempts <= kMaxInterruptions) {
      complete = false;
    } else if (result < 0) {
      job->status = ErrnoStatus(-result, At(job->file->path(), job->offset + job->done_bytes));
    } else {
      complete = TransferProgress(job, static_cast<uint64_t>(result));
    }
    if (!complete) {
      skip_bytes_ = result > 0 ? static_cast<size_t>(result) : 0;
      Prepare(job);
      return;
    }
    --(job->kind == IoJob::Kind::kRead ? num_reads_ : num_writes_);
    transferred_.push_back(job);
  }

  void Work() {
    pthread_setname_np(pthread_self(), "kv-disk-io");
    ListenToBell();
    for (;;) {
      const bool stop = StartQueued();
      if (stop && num_reads_ + num_writes_ == 0) {
        return;
      }
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      SPINDLE_CHECK(submitted >= 0 || submitted == -EINTR || submitted == -EAGAIN ||
                    submitted == -EBUSY);
      io_uring_cqe* completion = nullptr;
      while (io_uring_peek_cqe(&ring_, &completion) == 0) {
        auto* const job = static_cast<IoJob*>(io_uring_cqe_get_data(completion));
        const int result = completion->res;
        io_uring_cqe_seen(&ring_, completion);
        if (job == nullptr) {
          ListenToBell();
        } else {
          OnResult(job, result);
        }
      }
      // The device first gets its next work, then what came back is checked.
      if (!transferred_.empty()) {
        StartQueued();
        io_uring_submit(&ring_);
      }
      for (IoJob* const job : transferred_) {
        if (job->status.ok()) {
          job->status = job->After();
        }
        finished_.Push(job);
      }
      transferred_.clear();
    }
  }

  const uint32_t read_depth_;
  const uint32_t write_depth_;
  FinishedJobs finished_;
  BlockingWorkers tasks_;
  int bell_ = -1;

  Mutex mutex_;
  JobList reads_ SPINDLE_GUARDED_BY(mutex_);
  JobList writes_ SPINDLE_GUARDED_BY(mutex_);
  bool stop_ SPINDLE_GUARDED_BY(mutex_) = false;

  // Of the thread.
  io_uring ring_{};
  uint64_t bell_value_ = 0;
  uint32_t num_reads_ = 0;
  uint32_t num_writes_ = 0;
  size_t skip_bytes_ = 0;  // already transferred of the parts of the job that Prepare gets
  std::vector<IoJob*> transferred_;

  std::atomic<uint32_t> depth_{0};
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoQueue>> NewRingQueue(const IoQueueOptions& options) {
  auto queue = std::make_unique<RingQueue>(options);
  SPINDLE_RETURN_IF_ERROR(queue->Start());
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace spindle::kv::disk
