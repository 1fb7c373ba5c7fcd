// Requests with large bodies: what their bodies may take together, and a thread of their own for
// the work on them (parsing, templates, tokenizing), so that probes and short requests never wait
// behind a long prompt. Thread-safety: thread-safe; a Lease belongs to one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "server/http/http_options.h"

namespace spindle::server {

class LargeBodies {
 public:
  explicit LargeBodies(uint64_t max_bytes);
  ~LargeBodies();
  LargeBodies(const LargeBodies&) = delete;
  LargeBodies& operator=(const LargeBodies&) = delete;

  // The part of the common memory that one body holds. Move-only; gives back at its end.
  class Lease {
   public:
    explicit Lease(LargeBodies& owner) : owner_(&owner) {}

    Lease(Lease&& other) noexcept
        : owner_(other.owner_), bytes_(std::exchange(other.bytes_, uint64_t{0})) {}

    Lease& operator=(Lease&&) = delete;

    ~Lease() { Release(); }

    // False when the bodies of all requests would take more than they may.
    [[nodiscard]] bool Cover(uint64_t body_bytes);
    void Release();

   private:
    LargeBodies* owner_;
    uint64_t bytes_ = 0;
  };

  // Runs `work` on the thread; in order. The body's lease bounds how much waits.
  void Post(std::function<void()> work);

  // Waits for the work that has begun; what has not is dropped. Later calls of Post do nothing.
  void Stop();

 private:
  class Worker;

  const uint64_t max_bytes_;
  std::atomic<uint64_t> bytes_{0};
  const std::unique_ptr<Worker> worker_;
};

}  // namespace spindle::server
