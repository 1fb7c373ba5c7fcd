#include "engine/inbox.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace spindle::engine {

Inbox::Inbox(const EngineOptions& options)
    : max_requests_(options.max_queue_size),
      max_tokens_(options.max_queue_tokens),
      displaces_(options.policy == SchedulingPolicy::kPriority) {}

bool Inbox::FitsLocked(uint64_t requests, uint64_t tokens, const Request& request) const {
  return requests == 0 ||
         (requests < max_requests_ && tokens + request.spec.prompt.size() <= max_tokens_);
}

Inbox::Admission Inbox::TrySubmit(std::unique_ptr<Request>& request) {
  std::shared_ptr<StreamState> displaced;
  {
    MutexLock lock(mutex_);
    if (closed_) {
      return Admission::kClosed;
    }
    if (!FitsLocked(waiting_.size(), waiting_tokens_, *request)) {
      if (!displaces_ || waiting_.empty()) {
        return Admission::kQueueFull;
      }
      const auto last = std::prev(waiting_.end());
      const uint64_t tokens_without = waiting_tokens_ - last->request->spec.prompt.size();
      if (last->priority <= request->spec.priority ||
          !FitsLocked(waiting_.size() - 1, tokens_without, *request)) {
        return Admission::kQueueFull;
      }
      last->request->displaced.store(true);
      displaced = last->request->stream;
      RemoveWaitingLocked(last);
    }
    request->arrival = next_arrival_++;
    waiting_.insert({request->spec.priority, request->arrival, request.get()});
    waiting_tokens_ += request->spec.prompt.size();
    active_.emplace(request->spec.id, request->stream);
    submissions_.push_back(std::move(request));
    if (displaced != nullptr) {
      attention_.push_back(displaced);
    }
  }
  wake_engine_.NotifyOne();
  return Admission::kAccepted;
}

void Inbox::Attend(std::shared_ptr<StreamState> stream) {
  {
    MutexLock lock(mutex_);
    if (stopped_) {
      return;
    }
    attention_.push_back(std::move(stream));
  }
  wake_engine_.NotifyOne();
}

void Inbox::RunCommand(const std::function<void()>& command) {
  MutexLock turn(command_turn_);
  bool run_here = false;
  {
    MutexLock lock(mutex_);
    run_here = stopped_;
    if (!run_here) {
      command_ = &command;
      wake_engine_.NotifyOne();
      while (command_ != nullptr && !stopped_) {
        command_done_.Wait(mutex_);
      }
      run_here = command_ != nullptr;
      command_ = nullptr;
    }
  }
  if (run_here) {
    command();
  }
}

void Inbox::Wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  wake_engine_.NotifyOne();
}

void Inbox::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

std::vector<std::shared_ptr<StreamState>> Inbox::Find(const std::string& id) const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<StreamState>> found;
  const auto [begin, end] = active_.equal_range(id);
  for (auto it = begin; it != end; ++it) {
    found.push_back(it->second);
  }
  return found;
}

std::vector<std::shared_ptr<StreamState>> Inbox::Active() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<StreamState>> streams;
  streams.reserve(active_.size());
  for (const auto& entry : active_) {
    streams.push_back(entry.second);
  }
  return streams;
}

Inbox::Waiting Inbox::waiting() const {
  MutexLock lock(mutex_);
  return {static_cast<uint32_t>(waiting_.size()), waiting_tokens_};
}

bool Inbox::WaitUntilEmpty(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (!active_.empty()) {
    if (!empty_.WaitUntil(mutex_, deadline)) {
      return active_.empty();
    }
  }
  return true;
}

void Inbox::Drain(Mail* mail) {
  mail->submissions.clear();
  mail->attention.clear();
  const std::function<void()>* command = nullptr;
  {
    MutexLock lock(mutex_);
    mail->submissions.swap(submissions_);
    mail->attention.swap(attention_);
    command = command_;
  }
  if (command != nullptr) {
    // The caller waits, so the command stays alive; it may not take mutex_ for long.
    (*command)();
    MutexLock lock(mutex_);
    command_ = nullptr;
    command_done_.NotifyAll();
  }
}

bool Inbox::Leave(Request& request) {
  MutexLock lock(mutex_);
  const auto entry = waiting_.find({request.spec.priority, request.arrival, &request});
  if (entry == waiting_.end()) {
    return false;
  }
  RemoveWaitingLocked(entry);
  return true;
}

void Inbox::RemoveWaitingLocked(std::set<WaitingEntry>::iterator entry) {
  waiting_tokens_ -= entry->request->spec.prompt.size();
  waiting_.erase(entry);
}

void Inbox::Forget(const Request& request) {
  MutexLock lock(mutex_);
  const auto [begin, end] = active_.equal_range(request.spec.id);
  const auto entry = std::find_if(
      begin, end, [&request](const auto& active) { return active.second == request.stream; });
  SPINDLE_CHECK(entry != end);
  active_.erase(entry);
  if (active_.empty()) {
    empty_.NotifyAll();
  }
}

bool Inbox::HasMailLocked() const {
  return !submissions_.empty() || !attention_.empty() || command_ != nullptr || woken_ || stopped_;
}

void Inbox::WaitForMail(std::optional<TimePoint> deadline) {
  MutexLock lock(mutex_);
  while (!HasMailLocked()) {
    if (!deadline.has_value()) {
      wake_engine_.Wait(mutex_);
    } else if (!wake_engine_.WaitUntil(mutex_, *deadline)) {
      break;
    }
  }
  woken_ = false;
}

void Inbox::Stop() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    stopped_ = true;
    attention_.clear();  // each stream holds the inbox
    command_done_.NotifyAll();
  }
  wake_engine_.NotifyAll();
}

bool Inbox::stopped() const {
  MutexLock lock(mutex_);
  return stopped_;
}

}  // namespace spindle::engine
