// Threads that run jobs with blocking calls, reads first. Thread-safety: engine-thread only.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "kv/disk/io_queue.h"

namespace spindle::kv::disk {

class BlockingWorkers {
 public:
  // Borrows `finished`. `name` is the threads' name, at most 15 characters.
  BlockingWorkers(const char* name, uint32_t num_threads, FinishedJobs* finished);
  // Runs what is queued, then ends the threads.
  ~BlockingWorkers();

  void Submit(IoJob* job) SPINDLE_EXCLUDES(mutex_);
  bool TryCancel(IoJob* job) SPINDLE_EXCLUDES(mutex_);

  [[nodiscard]] uint32_t num_running() const {
    return num_running_.load(std::memory_order_relaxed);
  }

 private:
  void Work(const char* name) SPINDLE_EXCLUDES(mutex_);

  FinishedJobs* const finished_;
  Mutex mutex_;
  CondVar ready_;
  JobList reads_ SPINDLE_GUARDED_BY(mutex_);
  JobList others_ SPINDLE_GUARDED_BY(mutex_);
  bool stop_ SPINDLE_GUARDED_BY(mutex_) = false;
  std::atomic<uint32_t> num_running_{0};
  std::vector<std::thread> threads_;
};

}  // namespace spindle::kv::disk
