#include "server/http/orphans.h"

#include <utility>

namespace spindle::server {
namespace {

constexpr size_t kEventsPerPoll = 64;

}  // namespace

void Orphans::Adopt(std::unique_ptr<serving::Generation> generation,
                    engine::CancelCause cause,
                    RequestIds::Lease id,
                    ApiKeys::Slot slot) {
  generation->Cancel(cause);
  serving::Generation* borrowed = generation.get();
  uint64_t key = 0;
  {
    MutexLock lock(mutex_);
    key = next_key_++;
    orphans_.emplace(
        key,
        std::make_unique<Orphan>(Orphan{std::move(generation), std::move(id), std::move(slot)}));
  }
  borrowed->SetReadyCallback([this, key] { post_([this, key] { Pump(key); }); });
}

void Orphans::Pump(uint64_t key) {
  Orphan* orphan = nullptr;
  {
    MutexLock lock(mutex_);
    const auto it = orphans_.find(key);
    if (it == orphans_.end()) {
      return;
    }
    orphan = it->second.get();
  }
  std::vector<serving::GenerationEvent> events;
  while (orphan->generation->Poll(kEventsPerPoll, &events) > 0) {
    events.clear();
  }
  if (orphan->generation->Done()) {
    decltype(orphans_)::node_type ended;  // destroyed after the lock is gone
    MutexLock lock(mutex_);
    ended = orphans_.extract(key);
  }
}

void Orphans::Clear() {
  decltype(orphans_) dropped;  // destroyed after the lock is gone
  MutexLock lock(mutex_);
  dropped.swap(orphans_);
}

size_t Orphans::size() const {
  MutexLock lock(mutex_);
  return orphans_.size();
}

}  // namespace spindle::server
