#include "kv/disk/io_queue.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "kv/disk/blocking_workers.h"

namespace spindle::kv::disk {
namespace {

class InlineQueue final : public IoQueue {
 public:
  explicit InlineQueue(const Clock& clock) : clock_(clock) {}

  void Submit(IoJob* job) override {
    job->finished_at = clock_.Now();  // the time that it takes is added
    (job->kind == IoJob::Kind::kRead    ? reads_
     : job->kind == IoJob::Kind::kWrite ? writes_
                                        : tasks_)
        .Push(job);
  }

  bool TryCancel(IoJob* job) override {
    return (job->kind == IoJob::Kind::kRead ? reads_ : writes_).Remove(job);
  }

  IoJob* TakeFinished() override { return finished_.Pop(); }

  bool Drive() override {
    bool worked = false;
    for (JobList* list : {&reads_, &writes_, &tasks_}) {
      while (IoJob* const job = list->Pop()) {
        const TimePoint begun = clock_.Now();
        PerformBlocking(job);
        job->finished_at += clock_.Now() - begun;
        finished_.Push(job);
        worked = true;
      }
    }
    return worked;
  }

  void WaitFinished() override { Drive(); }

 private:
  const Clock& clock_;
  JobList reads_;
  JobList writes_;
  JobList tasks_;
  JobList finished_;
};

// Transfers of more than half a megabyte saturate a device from a few threads.
constexpr uint32_t kTransferThreads = 8;

class ThreadQueue final : public IoQueue {
 public:
  explicit ThreadQueue(const IoQueueOptions& options)
      : finished_(options),
        transfers_("kv-disk-io",
                   std::min(kTransferThreads, std::max(options.read_depth, uint32_t{1})),
                   &finished_),
        tasks_("kv-disk-task", 1, &finished_) {}

  void Submit(IoJob* job) override {
    (job->kind == IoJob::Kind::kTask ? tasks_ : transfers_).Submit(job);
  }

  bool TryCancel(IoJob* job) override { return transfers_.TryCancel(job); }

  IoJob* TakeFinished() override { return finished_.Take(); }

  void WaitFinished() override { finished_.Wait(); }

  [[nodiscard]] uint32_t depth() const override { return transfers_.num_running(); }

 private:
  FinishedJobs finished_;
  BlockingWorkers transfers_;
  BlockingWorkers tasks_;
};

}  // namespace

void JobList::Push(IoJob* job) {
  job->next = nullptr;
  (first_ == nullptr ? first_ : last_->next) = job;
  last_ = job;
}

IoJob* JobList::Pop() {
  IoJob* const job = first_;
  if (job != nullptr) {
    first_ = job->next;
  }
  return job;
}

bool JobList::Remove(const IoJob* job) {
  IoJob* previous = nullptr;
  for (IoJob* at = first_; at != nullptr; previous = at, at = at->next) {
    if (at != job) {
      continue;
    }
    (previous == nullptr ? first_ : previous->next) = at->next;
    if (last_ == at) {
      last_ = previous;
    }
    return true;
  }
  return false;
}

void FinishedJobs::Push(IoJob* job) {
  job->finished_at = clock_.Now();
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = jobs_.empty();
    jobs_.Push(job);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  ready_.NotifyOne();
  if (first && wake_) {
    wake_();
  }
}

IoJob* FinishedJobs::Take() {
  if (count_.load(std::memory_order_relaxed) == 0) {
    return nullptr;
  }
  MutexLock lock(mutex_);
  IoJob* const job = jobs_.Pop();
  if (job != nullptr) {
    count_.fetch_sub(1, std::memory_order_relaxed);
  }
  return job;
}

void FinishedJobs::Wait() {
  MutexLock lock(mutex_);
  while (jobs_.empty()) {
    ready_.Wait(mutex_);
  }
}

absl::Status ShortTransfer(const IoJob& job) {
  return absl::DataLossError(At(job.file->path(), job.offset) + ": only " +
                             std::to_string(job.done_bytes) + " of " + std::to_string(job.bytes) +
                             " bytes transferred");
}

void PerformBlocking(IoJob* job) {
  job->status = job->Before();
  if (job->status.ok() && job->kind == IoJob::Kind::kTask) {
    job->status = job->RunTask();
    return;
  }
  job->done_bytes = 0;
  job->num_short = 0;
  while (job->status.ok() && job->done_bytes < job->bytes) {
    std::array<iovec, kMaxParts> rest;
    const size_t num_parts =
        SkipParts(std::span(job->parts).first(job->num_parts), job->done_bytes, rest);
    const std::span<const iovec> parts = std::span(rest).first(num_parts);
    const uint64_t at = job->offset + job->done_bytes;
    const absl::StatusOr<size_t> moved = job->kind == IoJob::Kind::kRead
                                             ? job->file->ReadAt(at, parts)
                                             : job->file->WriteAt(at, parts);
    if (!moved.ok()) {
      job->status = moved.status();
      break;
    }
    job->done_bytes += *moved;
    if (job->done_bytes < job->bytes) {
      ++job->num_short;
      if (*moved == 0 || job->num_short > kMaxRetries) {
        job->status = ShortTransfer(*job);
      }
    }
  }
  if (job->status.ok()) {
    job->status = job->After();
  }
}

std::unique_ptr<IoQueue> NewInlineQueue(const Clock& clock) {
  return std::make_unique<InlineQueue>(clock);
}

std::unique_ptr<IoQueue> NewThreadQueue(const IoQueueOptions& options) {
  return std::make_unique<ThreadQueue>(options);
}

}  // namespace spindle::kv::disk
