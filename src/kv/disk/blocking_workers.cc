#include "kv/disk/blocking_workers.h"

#include <pthread.h>

namespace spindle::kv::disk {

BlockingWorkers::BlockingWorkers(const char* name, uint32_t num_threads, FinishedJobs* finished)
    : finished_(finished) {
  threads_.reserve(num_threads);
  for (uint32_t i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this, name] { Work(name); });
  }
}

BlockingWorkers::~BlockingWorkers() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  ready_.NotifyAll();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void BlockingWorkers::Submit(IoJob* job) {
  {
    MutexLock lock(mutex_);
    (job->kind == IoJob::Kind::kRead ? reads_ : others_).Push(job);
  }
  ready_.NotifyOne();
}

bool BlockingWorkers::TryCancel(IoJob* job) {
  MutexLock lock(mutex_);
  return (job->kind == IoJob::Kind::kRead ? reads_ : others_).Remove(job);
}

void BlockingWorkers::Work(const char* name) {
  pthread_setname_np(pthread_self(), name);
  for (;;) {
    IoJob* job = nullptr;
    {
      MutexLock lock(mutex_);
      while (reads_.empty() && others_.empty() && !stop_) {
        ready_.Wait(mutex_);
      }
      job = reads_.empty() ? others_.Pop() : reads_.Pop();
    }
    if (job == nullptr) {
      return;
    }
    num_running_.fetch_add(1, std::memory_order_relaxed);
    PerformBlocking(job);
    num_running_.fetch_sub(1, std::memory_order_relaxed);
    finished_->Push(job);
  }
}

}  // namespace spindle::kv::disk
