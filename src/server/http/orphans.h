// Generations whose client went away. They stay until their end arrives, so that their request id
// and their place under the key's limit are given back only when the engine is done with them.
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "server/common/api_keys.h"
#include "server/common/request_ids.h"
#include "serving/generation.h"

namespace spindle::server {

class Orphans {
 public:
  // `post` runs functions later, one at a time; it must not call them at once.
  explicit Orphans(std::function<void(std::function<void()>)> post) : post_(std::move(post)) {}

  // Cancels and keeps the generation.
  void Adopt(std::unique_ptr<serving::Generation> generation,
             engine::CancelCause cause,
             RequestIds::Lease id,
             ApiKeys::Slot slot);

  // Drops all. REQUIRES: posted functions run no more.
  void Clear();

  [[nodiscard]] size_t size() const;

 private:
  struct Orphan {
    std::unique_ptr<serving::Generation> generation;
    RequestIds::Lease id;
    ApiKeys::Slot slot;
  };

  void Pump(uint64_t key);

  const std::function<void(std::function<void()>)> post_;
  mutable Mutex mutex_;
  uint64_t next_key_ SPINDLE_GUARDED_BY(mutex_) = 0;
  // Only posted functions, which run one at a time, poll and erase entries.
  std::unordered_map<uint64_t, std::unique_ptr<Orphan>> orphans_ SPINDLE_GUARDED_BY(mutex_);
};

}  // namespace spindle::server
