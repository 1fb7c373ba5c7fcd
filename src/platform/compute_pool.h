// The compute workers: fork-join over work units, with the calling (engine) thread as worker 0.
// Thread-safety: Run from one thread at a time (the engine thread); construction and destruction
// elsewhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/exec.h"

namespace spindle::platform {

// Non-owning reference to a callable, so that a step allocates nothing.
class UnitFunction {
 public:
  template <typename F>

  requires(!std::is_same_v<std::remove_cvref_t<F>, UnitFunction>) UnitFunction(
      F&& f)  // NOLINT(google-explicit-constructor): a lambda at the call site, alive during Run
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, kernels::WorkRange range, kernels::Exec* exec) -> int {
          return (*static_cast<std::remove_reference_t<F>*>(object))(range, exec);
        }) {}

  int operator()(kernels::WorkRange range, kernels::Exec* exec) const {
    return call_(object_, range, exec);
  }

 private:
  void* object_;
  int (*call_)(void*, kernels::WorkRange, kernels::Exec*);
};

struct ComputePoolOptions {
  uint32_t num_threads = 0;  // workers including the caller; 0 = UsableCpus()
  bool pin = false;          // one CPU of the affinity mask per worker
};

// How pieces go to workers. Either way nobody waits while there are pieces left.
enum class Claiming : uint8_t {
  kOwnShare,  // each worker begins with consecutive ones, and helps the others then: it reads on
              // behind what it has just read, and what was prefetched is its own
  kInOrder,   // the next one for whoever is free: where the first ones take longest
};

class ComputePool {
 public:
  // ERRORS: kInvalidArgument (more threads than 1024), kResourceExhausted (thread or scratch
  // creation).
  static absl::StatusOr<std::unique_ptr<ComputePool>> Create(const ComputePoolOptions& options);
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  [[nodiscard]] uint32_t num_workers() const { return num_workers_; }

  // Calls fn over disjoint ranges that cover [0, units), on all workers, in pieces of `grain` units
  // (the last one may be smaller); returns when all are done. Allocates nothing. `units` ≤ grain
  // runs on the caller alone. ERRORS: the first kernel code other than 0, as Status (see
  // ToStatus); the other pieces still run.
  absl::Status Run(uint32_t units,
                   uint32_t grain,
                   UnitFunction fn,
                   Claiming claiming = Claiming::kOwnShare);

  // What a job to come will read, in shares like those of its pieces: workers that wait meanwhile
  // ask for the beginning of theirs, as much as a second cache takes. A hint, until the next one;
  // the memory may go away. From the thread that calls Run.
  void Expect(const void* data, size_t bytes);

 private:
  struct Impl;
  explicit ComputePool(std::unique_ptr<Impl> impl, uint32_t num_workers);

  std::unique_ptr<Impl> impl_;
  uint32_t num_workers_;
};

// Maps a kernel return code.
[[nodiscard]] absl::Status ToStatus(int kernel_code);

// CPUs this process may use: the affinity mask, cut by the cgroup's CPU quota (rounded up), at
// least 1.
[[nodiscard]] uint32_t UsableCpus();

// Bytes of memory this process may still take: the smaller of MemAvailable and the cgroup's
// remaining limit.
[[nodiscard]] uint64_t AvailableMemoryBytes();
// Total memory: the smaller of the machine's and the cgroup's limit.
[[nodiscard]] uint64_t TotalMemoryBytes();

}  // namespace spindle::platform
