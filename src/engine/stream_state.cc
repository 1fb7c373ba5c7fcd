#include "engine/stream_state.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "engine/inbox.h"

namespace spindle::engine {
namespace {

bool TakesTokenRoom(StreamEvent::Kind kind) {
  using enum StreamEvent::Kind;
  return kind == kToken || kind == kPromptLogprob || kind == kPrefill;
}

}  // namespace

StreamState::StreamState(std::shared_ptr<Inbox> inbox,
                         Info info,
                         uint32_t num_choices,
                         uint32_t capacity)
    : inbox_(std::move(inbox)),
      info_(std::move(info)),
      token_capacity_(capacity),
      ring_(capacity + num_choices + 2),  // kStarted, kFinished per choice, kDone
      stop_after_(num_choices),
      taken_(num_choices, 0) {}

bool StreamState::Next(StreamEvent* event) {
  bool made_room = false;
  {
    MutexLock lock(mutex_);
    if (size_ == 0) {
      consumer_waits_ = true;
      return false;
    }
    *event = std::move(ring_[first_]);
    first_ = (first_ + 1) % ring_.size();
    --size_;
    num_bounded_ -= TakesTokenRoom(event->kind) ? 1U : 0U;
    if (event->kind == StreamEvent::Kind::kToken) {
      ++taken_[event->choice];
    }
    made_room = num_bounded_ <= token_capacity_ / 2;
  }
  if (made_room && wants_room_.exchange(false)) {
    Attend();
  }
  return true;
}

void StreamState::SetReadyCallback(std::function<void()> ready) {
  MutexLock callback_lock(callback_mutex_);
  ready_ = std::move(ready);
  if (!ready_) {
    return;
  }
  bool some_wait = false;
  {
    MutexLock lock(mutex_);
    some_wait = size_ > 0;
    consumer_waits_ = !some_wait;
  }
  if (some_wait) {
    ready_();
  }
}

void StreamState::Cancel(CancelCause cause) {
  {
    MutexLock lock(mutex_);
    if (cancel_.has_value() || ended_) {
      return;
    }
    cancel_ = cause;
  }
  Attend();
}

void StreamState::StopChoice(uint32_t choice, uint32_t num_tokens) {
  {
    MutexLock lock(mutex_);
    SPINDLE_CHECK(choice < stop_after_.size());
    if (ended_ || stop_after_[choice].has_value()) {
      return;
    }
    stop_after_[choice] = num_tokens;
  }
  Attend();
}

void StreamState::Attend() {
  if (!attended_.exchange(true)) {
    inbox_->Attend(shared_from_this());
  }
}

uint32_t StreamState::Room() const {
  MutexLock lock(mutex_);
  return token_capacity_ - num_bounded_;
}

void StreamState::Push(StreamEvent&& event) {
  bool wake = false;
  {
    MutexLock lock(mutex_);
    if (TakesTokenRoom(event.kind)) {
      SPINDLE_CHECK(num_bounded_ < token_capacity_);
      ++num_bounded_;
    }
    SPINDLE_CHECK(size_ < ring_.size());
    ended_ = event.kind == StreamEvent::Kind::kDone;
    ring_[(first_ + size_) % ring_.size()] = std::move(event);
    ++size_;
    wake = std::exchange(consumer_waits_, false);
  }
  if (wake) {
    MutexLock callback_lock(callback_mutex_);
    if (ready_) {
      ready_();
    }
  }
}

void StreamState::WaitForRoom() {
  wants_room_.store(true);
  // The consumer may have made room between the engine's look and the store.
  bool has_room = false;
  {
    MutexLock lock(mutex_);
    has_room = num_bounded_ <= token_capacity_ / 2;
  }
  if (has_room && wants_room_.exchange(false)) {
    Attend();
  }
}

uint32_t StreamState::ExaminedTokens(uint32_t choice) const {
  MutexLock lock(mutex_);
  return taken_[choice] == 0 ? 0 : taken_[choice] - 1;
}

std::optional<CancelCause> StreamState::TakeWishes(
    std::vector<std::optional<uint32_t>>* stop_after) {
  attended_.store(false);
  MutexLock lock(mutex_);
  *stop_after = stop_after_;
  return cancel_;
}

}  // namespace spindle::engine
