// IoQueue over one io_uring that belongs to one thread.
#include <algorithm>
#include <array>
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

// A transfer goes to the kernel in pieces of at most this size: one bio of 4 KiB pages. More would
// be refused without waiting and handed to a kernel thread, which costs half of the rate.
constexpr uint64_t kPieceBytes = uint64_t{512} << 10;
// Pieces in the ring at a time.
constexpr uint32_t kMaxPieces = 128;

// The parts of [skip, skip + bytes) of `parts`; returns how many there are.
size_t SliceParts(std::span<const iovec> parts,
                  uint64_t skip,
                  uint64_t bytes,
                  std::span<iovec> slice) {
  const size_t count = SkipParts(parts, skip, slice);
  size_t kept = 0;
  for (; kept < count && bytes > 0; ++kept) {
    slice[kept].iov_len = std::min<uint64_t>(slice[kept].iov_len, bytes);
    bytes -= slice[kept].iov_len;
  }
  return kept;
}

class RingQueue final : public IoQueue {
 public:
  explicit RingQueue(const IoQueueOptions& options)
      : read_depth_(options.read_depth),
        write_depth_(options.write_depth),
        finished_(options),
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
    const int error = -io_uring_queue_init(kMaxPieces + 1, &ring_, 0);
    if (error != 0) {
      return ErrnoStatus(error, "io_uring");
    }
    bell_ = eventfd(0, EFD_CLOEXEC);
    if (bell_ < 0) {
      const int bell_error = errno;
      io_uring_queue_exit(&ring_);
      return ErrnoStatus(bell_error, "eventfd");
    }
    for (Piece& piece : pieces_) {
      free_pieces_.push_back(&piece);
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
  // Bytes [begin, begin + bytes) of a job's transfer, on their way.
  struct Piece {
    IoJob* job = nullptr;
    uint64_t begin = 0;
    uint64_t bytes = 0;
    uint64_t done = 0;
    uint32_t attempts = 0;
    std::array<iovec, kMaxParts> parts{};
  };

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

  // Puts the rest of a piece into the ring.
  void Prepare(Piece* piece) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    SPINDLE_CHECK(entry != nullptr);  // the ring has a place for every piece
    const IoJob& job = *piece->job;
    const auto num_parts =
        static_cast<unsigned>(SliceParts(std::span(job.parts).first(job.num_parts),
                                         piece->begin + piece->done,
                                         piece->bytes - piece->done,
                                         piece->parts));
    const uint64_t at = job.offset + piece->begin + piece->done;
    if (job.kind == IoJob::Kind::kRead) {
      io_uring_prep_readv(entry, job.file->descriptor(), piece->parts.data(), num_parts, at);
    } else {
      io_uring_prep_writev(entry, job.file->descriptor(), piece->parts.data(), num_parts, at);
    }
    io_uring_sqe_set_data(entry, piece);
  }

  // Begins the next queued job, if there is one.
  void BeginJob(bool* stop) {
    while (IoJob* const job = TakeQueued(stop)) {
      job->done_bytes = 0;
      job->num_short = 0;
      job->issued_bytes = 0;
      job->open_pieces = 0;
      job->status = job->Before();
      if (job->status.ok()) {
        ++(job->kind == IoJob::Kind::kRead ? num_reads_ : num_writes_);
        current_ = job;
        return;
      }
      finished_.Push(job);
    }
  }

  // Moves queued jobs into the ring, piece by piece; returns whether the queue is to end.
  bool StartQueued() {
    bool stop = false;
    while (!free_pieces_.empty()) {
      if (current_ == nullptr) {
        BeginJob(&stop);
      }
      if (current_ == nullptr) {
        break;
      }
      Piece* const piece = free_pieces_.back();
      free_pieces_.pop_back();
      *piece = Piece{.job = current_,
                     .begin = current_->issued_bytes,
                     .bytes = std::min(kPieceBytes, current_->bytes - current_->issued_bytes)};
      current_->issued_bytes += piece->bytes;
      ++current_->open_pieces;
      Prepare(piece);
      if (current_->issued_bytes == current_->bytes) {
        current_ = nullptr;
      }
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

  // One piece came back with `result`, bytes or a negative error.
  void OnResult(Piece* piece, int result) {
    IoJob* const job = piece->job;
    if (result >= 0) {
      piece->done += static_cast<uint64_t>(result);
      job->done_bytes += static_cast<uint64_t>(result);
    }
    const bool undone = result == -EINTR || result == -EAGAIN;
    const bool rest = piece->done < piece->bytes;
    job->num_short += rest && result >= 0 ? 1 : 0;
    if (rest && (result > 0 || undone) && ++piece->attempts <= kMaxRetries) {
      Prepare(piece);
      return;
    }
    if (rest && job->status.ok()) {
      job->status =
          result < 0 ? ErrnoStatus(-result,
                                   At(job->file->path(), job->offset + piece->begin + piece->done))
                     : ShortTransfer(*job);
    }
    free_pieces_.push_back(piece);
    if (!job->status.ok() && current_ == job) {
      job->issued_bytes = job->bytes;  // no more of it
      current_ = nullptr;
    }
    if (--job->open_pieces == 0 && job->issued_bytes == job->bytes) {
      --(job->kind == IoJob::Kind::kRead ? num_reads_ : num_writes_);
      transferred_.push_back(job);
    }
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
        auto* const piece = static_cast<Piece*>(io_uring_cqe_get_data(completion));
        const int result = completion->res;
        io_uring_cqe_seen(&ring_, completion);
        if (piece == nullptr) {
          ListenToBell();
        } else {
          OnResult(piece, result);
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
  IoJob* current_ = nullptr;  // begun, not all of its pieces are in the ring
  std::array<Piece, kMaxPieces> pieces_;
  std::vector<Piece*> free_pieces_;
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
