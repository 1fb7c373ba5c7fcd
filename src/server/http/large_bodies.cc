#include "server/http/large_bodies.h"

#include <deque>
#include <thread>

#include <malloc.h>
#include <pthread.h>

#include "base/mutex.h"

namespace spindle::server {

class LargeBodies::Worker {
 public:
  Worker() : thread_([this] { Run(); }) { pthread_setname_np(thread_.native_handle(), "bodies"); }

  ~Worker() { Stop(); }

  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Post(std::function<void()> work) {
    {
      MutexLock lock(mutex_);
      if (stopping_) {
        return;
      }
      queue_.push_back(std::move(work));
    }
    changed_.NotifyOne();
  }

  void Stop() {
    std::deque<std::function<void()>> dropped;  // destroyed without the lock
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      dropped.swap(queue_);
    }
    changed_.NotifyOne();
    MutexLock joining(join_mutex_);
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(mutex_);
        while (queue_.empty() && !stopping_) {
          changed_.Wait(mutex_);
        }
        if (stopping_) {
          return;
        }
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
      work = nullptr;
      // Tokenizing takes many times the size of a body; the allocator would keep it for ever.
      malloc_trim(0);
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ SPINDLE_GUARDED_BY(mutex_);
  bool stopping_ SPINDLE_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;
  std::thread thread_;  // last: it uses the others
};

LargeBodies::LargeBodies(uint64_t max_bytes)
    : memory_(max_bytes, kLargeBodyBytes), worker_(std::make_unique<Worker>()) {}

LargeBodies::~LargeBodies() = default;

void LargeBodies::Post(std::function<void()> work) {
  worker_->Post(std::move(work));
}

void LargeBodies::Stop() {
  worker_->Stop();
}

}  // namespace spindle::server
