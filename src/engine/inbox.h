// Everything that reaches the engine thread from outside: submissions, requests to look at, one
// command at a time. Also the book of waiting and active requests, since whether a submission is
// accepted is decided on the caller's thread.
// Thread-safety: thread-safe; Drain, Leave, Forget and WaitUntil are the engine thread's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/engine_options.h"
#include "engine/request.h"
#include "engine/stream_state.h"

namespace spindle::engine {

class Inbox {
 public:
  explicit Inbox(const EngineOptions& options);

  // --- any thread
  enum class Admission : uint8_t { kAccepted, kQueueFull, kClosed };

  // Accepts the request into the bounded queue, displacing a less urgent one if that makes room.
  // `request` is moved from only when accepted. An empty queue always takes one.
  [[nodiscard]] Admission TrySubmit(std::unique_ptr<Request>& request);

  // Bounded by the number of active requests: a stream is listed once until the engine looked.
  void Attend(std::shared_ptr<StreamState> stream);

  // Runs `command` on the engine thread between steps and waits for it; on the calling thread when
  // the engine thread has stopped. Callers queue up behind each other.
  void RunCommand(const std::function<void()>& command);

  // Makes the engine thread look around.
  void Wake();

  // No submissions from now on.
  void Close();

  // Streams of the active requests with this id.
  [[nodiscard]] std::vector<std::shared_ptr<StreamState>> Find(const std::string& id) const;
  [[nodiscard]] std::vector<std::shared_ptr<StreamState>> Active() const;

  struct Waiting {
    uint32_t requests = 0;
    uint64_t tokens = 0;
  };

  [[nodiscard]] Waiting waiting() const;

  // Blocks until nothing is active; false when `deadline` (steady clock) passes before.
  [[nodiscard]] bool WaitUntilEmpty(TimePoint deadline);

  // --- engine thread
  struct Mail {
    std::vector<std::unique_ptr<Request>> submissions;
    std::vector<std::shared_ptr<StreamState>> attention;
  };

  // Swaps the lists in, and runs a waiting command.
  void Drain(Mail* mail);

  // The request begins to run or ends: it is no longer one of the waiting. False when it was
  // displaced before.
  [[nodiscard]] bool Leave(Request& request);

  // The request ended.
  void Forget(const Request& request);

  // Blocks until there is mail, a command or Stop, at most until `deadline` (steady clock); without
  // one, for ever.
  void WaitForMail(std::optional<TimePoint> deadline);

  // The engine thread leaves: later commands run on their callers' threads.
  void Stop();
  [[nodiscard]] bool stopped() const;

 private:
  struct WaitingEntry {
    int32_t priority;
    uint64_t arrival;
    Request* request;

    // Last = the next to be displaced: the newest of the lowest priority.
    bool operator<(const WaitingEntry& other) const {
      return std::pair(priority, arrival) < std::pair(other.priority, other.arrival);
    }
  };

  [[nodiscard]] bool FitsLocked(uint64_t requests, uint64_t tokens, const Request& request) const
      SPINDLE_REQUIRES(mutex_);
  void RemoveWaitingLocked(std::set<WaitingEntry>::iterator entry) SPINDLE_REQUIRES(mutex_);
  [[nodiscard]] bool HasMailLocked() const SPINDLE_REQUIRES(mutex_);

  const uint64_t max_requests_;
  const uint64_t max_tokens_;
  const bool displaces_;

  mutable Mutex mutex_;
  CondVar wake_engine_;
  CondVar empty_;
  std::vector<std::unique_ptr<Request>> submissions_ SPINDLE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<StreamState>> attention_ SPINDLE_GUARDED_BY(mutex_);
  std::set<WaitingEntry> waiting_ SPINDLE_GUARDED_BY(mutex_);
  uint64_t waiting_tokens_ SPINDLE_GUARDED_BY(mutex_) = 0;
  uint64_t next_arrival_ SPINDLE_GUARDED_BY(mutex_) = 0;
  // Shared with the consumer of each stream.
  std::unordered_multimap<std::string, std::shared_ptr<StreamState>> active_
      SPINDLE_GUARDED_BY(mutex_);
  bool closed_ SPINDLE_GUARDED_BY(mutex_) = false;
  bool woken_ SPINDLE_GUARDED_BY(mutex_) = false;
  bool stopped_ SPINDLE_GUARDED_BY(mutex_) = false;
  const std::function<void()>* command_ SPINDLE_GUARDED_BY(mutex_) = nullptr;
  CondVar command_done_;

  Mutex command_turn_;  // held by the caller whose command is waiting or running
};

}  // namespace spindle::engine
