// Requests with large bodies: what their bodies may take together, and a thread of their own for
// the work on them (parsing, templates, tokenizing), so that probes and short requests never wait
// behind a long prompt. Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/byte_quota.h"
#include "server/http/http_options.h"

namespace spindle::server {

class LargeBodies {
 public:
  explicit LargeBodies(uint64_t max_bytes);
  ~LargeBodies();
  LargeBodies(const LargeBodies&) = delete;
  LargeBodies& operator=(const LargeBodies&) = delete;

  // What a body above kLargeBodyBytes takes leases of.
  [[nodiscard]] ByteQuota& memory() { return memory_; }

  // Runs `work` on the thread; in order. The body's lease bounds how much waits.
  void Post(std::function<void()> work);

  // Waits for the work that has begun; what has not is dropped. Later calls of Post do nothing.
  void Stop();

 private:
  class Worker;

  ByteQuota memory_;
  const std::unique_ptr<Worker> worker_;
};

}  // namespace spindle::server
