// The thread that carries "events are ready" from the engine to gRPC calls: the engine thread may
// only post. Thread-safety: thread-safe.
#pragma once

#include <functional>
#include <thread>

#include "base/bounded_queue.h"

namespace spindle::server {

class StreamWorker {
 public:
  // `capacity` bounds the calls that may wait at once.
  explicit StreamWorker(size_t capacity);
  ~StreamWorker();
  StreamWorker(const StreamWorker&) = delete;
  StreamWorker& operator=(const StreamWorker&) = delete;

  // Runs `task` soon on the worker; false when stopped or full. Never blocks.
  bool Post(std::function<void()> task);

 private:
  BoundedQueue<std::function<void()>> tasks_;
  std::thread thread_;
};

}  // namespace spindle::server
