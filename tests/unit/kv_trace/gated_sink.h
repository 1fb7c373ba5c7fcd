// A file that takes nothing until it is told to, and fails when it is told to.
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.h"
#include "kv/trace/trace_file.h"

namespace spindle::kv {

// What happens to the writes; outlives the sink.
class Gate {
 public:
  void Open() SPINDLE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    is_open_ = true;
    changed_.NotifyAll();
  }

  void Break() SPINDLE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    is_broken_ = true;
  }

  // Blocks until a write waits at the closed gate.
  void AwaitWriter() SPINDLE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!is_waiting_) {
      changed_.Wait(mutex_);
    }
  }

  [[nodiscard]] std::string bytes() SPINDLE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return bytes_;
  }

  [[nodiscard]] std::unique_ptr<TraceSink> NewSink() { return std::make_unique<Sink>(this); }

 private:
  class Sink final : public TraceSink {
   public:
    explicit Sink(Gate* gate) : gate_(gate) {}

    [[nodiscard]] absl::Status Write(std::span<const uint8_t> bytes) override {
      return gate_->Take(bytes);
    }

   private:
    Gate* const gate_;
  };

  [[nodiscard]] absl::Status Take(std::span<const uint8_t> bytes) SPINDLE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!is_open_) {
      is_waiting_ = true;
      changed_.NotifyAll();
      changed_.Wait(mutex_);
    }
    is_waiting_ = false;
    if (is_broken_) {
      return absl::UnavailableError("no space left");
    }
    bytes_.append(bytes.begin(), bytes.end());
    return absl::OkStatus();
  }

  Mutex mutex_;
  CondVar changed_;
  bool is_open_ SPINDLE_GUARDED_BY(mutex_) = false;
  bool is_broken_ SPINDLE_GUARDED_BY(mutex_) = false;
  bool is_waiting_ SPINDLE_GUARDED_BY(mutex_) = false;
  std::string bytes_ SPINDLE_GUARDED_BY(mutex_);
};

}  // namespace spindle::kv
