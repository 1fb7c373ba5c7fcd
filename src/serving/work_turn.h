// Turns for work that takes much memory: whoever has more than kLargeWorkBytes to work on waits
// until nobody else has. Thread-safety: belongs to one thread; the mutex is shared.
#pragma once

#include <cstddef>

#include "base/mutex.h"
#include "serving/body_limits.h"

namespace spindle::serving {

class WorkTurn {
 public:
  // Holds `mutex` while it lives, if there is much to do. `mutex` guards nothing else.
  WorkTurn(Mutex& mutex, size_t num_bytes) SPINDLE_NO_THREAD_SAFETY_ANALYSIS
      : mutex_(num_bytes > kLargeWorkBytes ? &mutex : nullptr) {
    if (mutex_ != nullptr) {
      mutex_->Lock();
    }
  }

  ~WorkTurn() SPINDLE_NO_THREAD_SAFETY_ANALYSIS {
    if (mutex_ != nullptr) {
      mutex_->Unlock();
    }
  }

  WorkTurn(const WorkTurn&) = delete;
  WorkTurn& operator=(const WorkTurn&) = delete;

 private:
  Mutex* const mutex_;
};

}  // namespace spindle::serving
