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
    : max_bytes_(max_bytes), worker_(std::make_unique<Worker>()) {}

LargeBodies::~LargeBodies() = default;

bool LargeBodies::Lease::Cover(uint64_t body_bytes) {
  if (body_bytes <= kLargeBodyBytes || body_bytes <= bytes_) {
    return true;
  }
  const uint64_t more = body_bytes - bytes_;
  const uint64_t before = owner_->bytes_.fetch_add(more);
  if (before + more > owner_->max_bytes_) {
    owner_->bytes_.fetch_sub(more);
    return false;
  }
  bytes_ = body_bytes;
  return true;
}

void LargeBodies::Lease::Release() {
  owner_->bytes_.fetch_sub(bytes_);
  bytes_ = 0;
}

void LargeBodies::Post(std::function<void()> work) {
  worker_->Post(std::move(work));
}

void LargeBodies::Stop() {
  worker_->Stop();
}

}  // namespace spindle::server
