#include "kv/trace/trace_queue.h"

#include <utility>

#include <pthread.h>

#include "base/log.h"

namespace spindle::kv {

class TraceQueue::Sink final : public TraceSink {
 public:
  Sink(TraceQueue* queue, TraceSink* file) : queue_(queue), file_(file) {}

  [[nodiscard]] absl::Status Write(std::span<const uint8_t> bytes) override {
    return queue_->Push(file_, bytes);
  }

 private:
  TraceQueue* const queue_;
  TraceSink* const file_;
};

TraceQueue::TraceQueue(uint64_t max_bytes) : max_bytes_(max_bytes), thread_([this] { Run(); }) {}

std::unique_ptr<TraceSink> TraceQueue::Add(std::unique_ptr<TraceSink> file) {
  files_.push_back(std::move(file));
  return std::make_unique<Sink>(this, files_.back().get());
}

absl::Status TraceQueue::Push(TraceSink* file, std::span<const uint8_t> bytes) {
  Block block{file, {bytes.begin(), bytes.end()}};
  {
    MutexLock lock(mutex_);
    if (failed_ || closed_) {
      return absl::UnavailableError("traces are not written any more");
    }
    if (waiting_bytes_ + bytes.size() > max_bytes_) {
      return absl::ResourceExhaustedError("traces come faster than they are written");
    }
    waiting_bytes_ += bytes.size();
    blocks_.push_back(std::move(block));
  }
  ready_.NotifyOne();
  return absl::OkStatus();
}

void TraceQueue::Run() {
  pthread_setname_np(pthread_self(), "kv-trace");
  for (;;) {
    Block block;
    {
      MutexLock lock(mutex_);
      while (blocks_.empty() && !closed_) {
        ready_.Wait(mutex_);
      }
      if (blocks_.empty()) {
        return;
      }
      block = std::move(blocks_.front());
      blocks_.pop_front();
    }
    const absl::Status status = block.file->Write(block.bytes);
    if (!status.ok()) {
      log::Warn("kv_trace_failed", {{"error", std::string(status.message())}});
    }
    MutexLock lock(mutex_);
    waiting_bytes_ -= block.bytes.size();
    if (!status.ok()) {
      failed_ = true;
      blocks_.clear();
      waiting_bytes_ = 0;
    }
    if (waiting_bytes_ == 0) {
      empty_.NotifyAll();
    }
  }
}

void TraceQueue::Drain() {
  MutexLock lock(mutex_);
  while (waiting_bytes_ > 0) {
    empty_.Wait(mutex_);
  }
}

void TraceQueue::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  ready_.NotifyOne();
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace spindle::kv
