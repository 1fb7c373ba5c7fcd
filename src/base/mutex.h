// std::mutex and friends with Clang's thread-safety annotations (-Wthread-safety). We wrap
// std::mutex rather than use absl::Mutex because Debian's uninstrumented Abseil makes
// ThreadSanitizer report false races. Thread-safety: the point of this file.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define SPINDLE_TSA(x) __attribute__((x))
#else
#define SPINDLE_TSA(x)
#endif

#define SPINDLE_CAPABILITY(name) SPINDLE_TSA(capability(name))
#define SPINDLE_SCOPED_CAPABILITY SPINDLE_TSA(scoped_lockable)
#define SPINDLE_GUARDED_BY(m) SPINDLE_TSA(guarded_by(m))
#define SPINDLE_PT_GUARDED_BY(m) SPINDLE_TSA(pt_guarded_by(m))
#define SPINDLE_REQUIRES(...) SPINDLE_TSA(requires_capability(__VA_ARGS__))
#define SPINDLE_EXCLUDES(...) SPINDLE_TSA(locks_excluded(__VA_ARGS__))
#define SPINDLE_ACQUIRE(...) SPINDLE_TSA(acquire_capability(__VA_ARGS__))
#define SPINDLE_RELEASE(...) SPINDLE_TSA(release_capability(__VA_ARGS__))
#define SPINDLE_NO_THREAD_SAFETY_ANALYSIS SPINDLE_TSA(no_thread_safety_analysis)

namespace spindle {

class SPINDLE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() SPINDLE_ACQUIRE() { mutex_.lock(); }

  void Unlock() SPINDLE_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class SPINDLE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SPINDLE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }

  ~MutexLock() SPINDLE_RELEASE() { mutex_.Unlock(); }

  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Callers loop on their own predicate: `while (!ready_) cv_.Wait(mutex_);`, which the analysis can
// follow.
class CondVar {
 public:
  // Blocks. Spurious wake-ups happen.
  void Wait(Mutex& mutex) SPINDLE_REQUIRES(mutex) SPINDLE_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }

  // Blocks until `deadline`; false when it passed.
  template <typename Clock, typename Dur>
  bool WaitUntil(Mutex& mutex, std::chrono::time_point<Clock, Dur> deadline)
      SPINDLE_REQUIRES(mutex) SPINDLE_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }

  void NotifyOne() { cv_.notify_one(); }

  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace spindle
