// The engine's end of an output stream: a ring of events, the consumer's wishes, and the numbers
// that listings show. One per request.
// Thread-safety: thread-safe; Push and the setters are the engine thread's, the OutputStream
// functions the consumer's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/output_stream.h"

namespace spindle::engine {

struct Request;
class Inbox;

// What a listing shows; written by the engine thread, read by any.
struct RequestProgress {
  std::atomic<RequestPhase> phase{RequestPhase::kQueued};
  std::atomic<uint32_t> generated_tokens{0};
  std::atomic<uint32_t> cached_tokens{0};
  std::atomic<uint64_t> kv_bytes{0};
};

class StreamState : public std::enable_shared_from_this<StreamState> {
 public:
  struct Info {
    std::string id;
    std::string key_name;
    int32_t priority = 0;
    uint32_t prompt_tokens = 0;
    TimePoint submitted;
  };

  // `capacity` events of tokens; there is room beside them for the events that begin and end the
  // `num_choices` choices.
  StreamState(std::shared_ptr<Inbox> inbox, Info info, uint32_t num_choices, uint32_t capacity);

  // --- consumer
  [[nodiscard]] bool Next(StreamEvent* event);
  void SetReadyCallback(std::function<void()> ready);
  void Cancel(CancelCause cause);
  void StopChoice(uint32_t choice, uint32_t num_tokens);

  // --- engine thread
  // Token events that may still be pushed.
  [[nodiscard]] uint32_t Room() const;
  // REQUIRES: Room() > 0 for token, prompt and progress events.
  void Push(StreamEvent&& event);
  // The consumer wakes the engine once half of the token room is free.
  void WaitForRoom();
  // Tokens of a choice that the consumer took and left behind: certainly kept, unless StopChoice
  // said otherwise.
  [[nodiscard]] uint32_t ExaminedTokens(uint32_t choice) const;

  // Reads the wishes and allows the next one to wake the engine again.
  [[nodiscard]] std::optional<CancelCause> TakeWishes(
      std::vector<std::optional<uint32_t>>* stop_after);

  [[nodiscard]] const Info& info() const { return info_; }

  [[nodiscard]] RequestProgress& progress() { return progress_; }

  [[nodiscard]] const RequestProgress& progress() const { return progress_; }

  // The engine's object of this stream; null once it ended. Engine-thread only.
  Request* request = nullptr;

 private:
  // Puts the stream on the engine's list of requests to look at, once until TakeWishes.
  void Attend();

  // Shared with the engine: a consumer may outlive it and still cancel.
  const std::shared_ptr<Inbox> inbox_;
  const Info info_;
  const uint32_t token_capacity_;
  RequestProgress progress_;
  std::atomic<bool> attended_{false};
  std::atomic<bool> wants_room_{false};

  mutable Mutex mutex_;
  std::vector<StreamEvent> ring_ SPINDLE_GUARDED_BY(mutex_);
  size_t first_ SPINDLE_GUARDED_BY(mutex_) = 0;
  size_t size_ SPINDLE_GUARDED_BY(mutex_) = 0;
  uint32_t num_bounded_ SPINDLE_GUARDED_BY(mutex_) = 0;  // token, prompt and progress events
  bool consumer_waits_ SPINDLE_GUARDED_BY(mutex_) = true;
  std::optional<CancelCause> cancel_ SPINDLE_GUARDED_BY(mutex_);
  bool ended_ SPINDLE_GUARDED_BY(mutex_) = false;
  std::vector<std::optional<uint32_t>> stop_after_ SPINDLE_GUARDED_BY(mutex_);
  std::vector<uint32_t> taken_ SPINDLE_GUARDED_BY(mutex_);

  // Held while the callback runs, so that its removal can wait for it. Never taken under mutex_.
  Mutex callback_mutex_;
  std::function<void()> ready_ SPINDLE_GUARDED_BY(callback_mutex_);
};

// The consumer's handle; giving it up cancels the request.
class StreamHandle final : public OutputStream {
 public:
  explicit StreamHandle(std::shared_ptr<StreamState> state) : state_(std::move(state)) {}

  ~StreamHandle() override {
    state_->SetReadyCallback({});
    state_->Cancel(CancelCause::kClientGone);
  }

  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;

  [[nodiscard]] bool Next(StreamEvent* event) override { return state_->Next(event); }

  void SetReadyCallback(std::function<void()> ready) override {
    state_->SetReadyCallback(std::move(ready));
  }

  void Cancel(CancelCause cause) override { state_->Cancel(cause); }

  void StopChoice(uint32_t choice, uint32_t num_tokens) override {
    state_->StopChoice(choice, num_tokens);
  }

 private:
  const std::shared_ptr<StreamState> state_;  // shared with the engine until the request ended
};

}  // namespace spindle::engine
