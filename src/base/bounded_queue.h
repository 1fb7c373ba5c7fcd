// A bounded queue between threads: any producers, one consumer. A full queue refuses; nobody
// waits for room. It wakes a blocked consumer and can be closed.
// Thread-safety: thread-safe in the stated roles.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace spindle {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when the queue is full or closed; `item` is then untouched. Never blocks for room.
  [[nodiscard]] bool TryPush(T&& item) SPINDLE_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (closed_ || items_.size() >= capacity_) {
        return false;
      }
      items_.push_back(std::move(item));
    }
    ready_.NotifyOne();
    return true;
  }

  // Never blocks.
  [[nodiscard]] std::optional<T> TryPop() SPINDLE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return PopLocked();
  }

  // Blocks until an item arrives, the queue is closed and drained, or `deadline` passes.
  [[nodiscard]] std::optional<T> PopUntil(TimePoint deadline) SPINDLE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (items_.empty() && !closed_ && !woken_) {
      if (!ready_.WaitUntil(mutex_, deadline)) {
        break;
      }
    }
    woken_ = false;
    return PopLocked();
  }

  // Blocks until an item arrives or the queue is closed and drained.
  [[nodiscard]] std::optional<T> Pop() SPINDLE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (items_.empty() && !closed_ && !woken_) {
      ready_.Wait(mutex_);
    }
    woken_ = false;
    return PopLocked();
  }

  // Makes one blocked or future Pop return early, with whatever is there.
  void Wake() SPINDLE_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      woken_ = true;
    }
    ready_.NotifyOne();
  }

  // Later pushes fail; what is queued can still be popped.
  void Close() SPINDLE_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    ready_.NotifyAll();
  }

  [[nodiscard]] size_t Size() const SPINDLE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> PopLocked() SPINDLE_REQUIRES(mutex_) {
    if (items_.empty()) {
      return std::nullopt;
    }
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar ready_;
  std::deque<T> items_ SPINDLE_GUARDED_BY(mutex_);
  bool closed_ SPINDLE_GUARDED_BY(mutex_) = false;
  bool woken_ SPINDLE_GUARDED_BY(mutex_) = false;
};

}  // namespace spindle
