// Writes traces on a thread of its own, so that whoever records never waits for a disk. What waits
// is bounded in bytes; a full queue refuses. The first error ends all of its traces, with one line
// in the log.
// Thread-safety: Add, Drain and Close on one thread; each sink on one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "kv/trace/trace_file.h"

namespace spindle::kv {

class TraceQueue {
 public:
  explicit TraceQueue(uint64_t max_bytes);

  ~TraceQueue() { Close(); }

  TraceQueue(const TraceQueue&) = delete;
  TraceQueue& operator=(const TraceQueue&) = delete;

  // What is written to the result goes to `file`, by the thread. The result never blocks; the queue
  // must outlive it.
  [[nodiscard]] std::unique_ptr<TraceSink> Add(std::unique_ptr<TraceSink> file);

  // Blocks until nothing waits.
  void Drain() SPINDLE_EXCLUDES(mutex_);

  // The same, and ends the thread; later writes fail.
  void Close() SPINDLE_EXCLUDES(mutex_);

 private:
  class Sink;

  struct Block {
    TraceSink* file;
    std::vector<uint8_t> bytes;
  };

  [[nodiscard]] absl::Status Push(TraceSink* file, std::span<const uint8_t> bytes)
      SPINDLE_EXCLUDES(mutex_);
  void Run() SPINDLE_EXCLUDES(mutex_);

  const uint64_t max_bytes_;
  std::vector<std::unique_ptr<TraceSink>> files_;
  Mutex mutex_;
  CondVar ready_;
  CondVar empty_;
  std::deque<Block> blocks_ SPINDLE_GUARDED_BY(mutex_);
  uint64_t waiting_bytes_ SPINDLE_GUARDED_BY(mutex_) = 0;  // the block being written included
  bool failed_ SPINDLE_GUARDED_BY(mutex_) = false;
  bool closed_ SPINDLE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace spindle::kv
