#include "platform/compute_pool.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "platform/memory.h"

namespace spindle::platform {
namespace {

// Long enough to bridge the serial code between two kernels of a layer, short enough not to starve
// a neighbour.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr uint32_t kMaxThreads = 1024;
// Of what is expected, per worker: leaves most of a second cache of 1 MiB to the work of now.
constexpr size_t kWarmBytes = 512 << 10;
constexpr size_t kLineBytes = 64;
// Between two looks for work: some 0.1 µs where memory is busy.
constexpr size_t kLinesPerTurn = 4;

void PinTo(pthread_t thread, const cpu_set_t& mask, uint32_t worker) {
  uint32_t seen = 0;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask) && seen++ == worker) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      pthread_setaffinity_np(thread, sizeof(one), &one);
      return;
    }
  }
}

struct Expected {
  std::atomic<const uint8_t*> data{nullptr};
  std::atomic<size_t> bytes{0};  // may belong to another `data` for a moment: nothing depends on it
};

// What one worker does while it waits: it asks for its share of what is expected.
class Warming {
 public:
  Warming(const Expected& expected, uint32_t worker, uint32_t num_workers)
      : expected_(expected), worker_(worker), num_workers_(num_workers) {}

  // False when everything has been asked for.
  bool Turn() {
    const uint8_t* data = expected_.data.load(std::memory_order_relaxed);
    if (data != data_) {
      data_ = data;
      const size_t bytes = expected_.bytes.load(std::memory_order_relaxed);
      next_ = bytes * worker_ / num_workers_;
      end_ = std::min(next_ + kWarmBytes, bytes * (worker_ + 1) / num_workers_);
    }
    for (size_t i = 0; i < kLinesPerTurn && next_ < end_; ++i, next_ += kLineBytes) {
      __builtin_prefetch(data_ + next_, 0, 2);
    }
    return next_ < end_;
  }

 private:
  const Expected& expected_;
  uint32_t worker_;
  uint32_t num_workers_;
  const uint8_t* data_ = nullptr;
  size_t next_ = 0;  // of the bytes that are expected
  size_t end_ = 0;
};

}  // namespace

struct ComputePool::Impl {
  // A job is published by bumping `generation`; workers claim pieces and count themselves out in
  // `busy`.
  struct alignas(64) Job {
    std::atomic<int> code{0};
    uint32_t units = 0;
    uint32_t grain = 1;
    uint32_t num_shares = 1;  // in use
    const UnitFunction* fn = nullptr;
  };

  // Consecutive pieces, claimed one by one.
  struct alignas(64) Share {
    std::atomic<uint32_t> next{0};
    uint32_t end = 0;
  };

  Job job;
  Expected expected;
  std::optional<Warming> warming;  // the calling thread's
  std::vector<Share> shares;
  alignas(64) std::atomic<uint32_t> generation{0};
  alignas(64) std::atomic<uint32_t> busy{0};
  std::atomic<bool> stop{false};
  std::vector<AlignedBuffer> scratch;
  std::vector<std::thread> threads;

  void Work(uint32_t worker) {
    kernels::Exec exec{scratch[worker].data(), kernels::kScratchBytes, worker, nullptr};
    for (uint32_t i = 0; i < job.num_shares; ++i) {
      Share& share = shares[(worker + i) % job.num_shares];
      // Looked at first: claiming what is not there costs all others the cache line.
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const uint32_t piece = share.next.fetch_add(1, std::memory_order_relaxed);
        if (piece >= share.end) {
          break;
        }
        const uint32_t begin = piece * job.grain;
        const uint32_t end = job.units - begin < job.grain ? job.units : begin + job.grain;
        const int code = (*job.fn)({begin, end}, &exec);
        if (code != kernels::kOk) {
          int none = kernels::kOk;
          job.code.compare_exchange_strong(none, code, std::memory_order_relaxed);
        }
      }
    }
  }

  void Divide(uint32_t units, uint32_t grain, uint32_t num_shares) {
    job.units = units;
    job.grain = grain;
    job.num_shares = num_shares;
    const uint64_t pieces = (uint64_t{units} + grain - 1) / grain;
    for (uint32_t i = 0; i < num_shares; ++i) {
      shares[i].next.store(static_cast<uint32_t>(pieces * i / num_shares),
                           std::memory_order_relaxed);
      shares[i].end = static_cast<uint32_t>(pieces * (i + 1) / num_shares);
    }
  }

  void Loop(uint32_t worker) {
    uint32_t seen = 0;
    Warming own_warming(expected, worker, static_cast<uint32_t>(shares.size()));
    for (;;) {
      const auto spin_end = std::chrono::steady_clock::now() + kSpin;
      while (generation.load(std::memory_order_acquire) == seen) {
        if (own_warming.Turn()) {
          continue;
        }
        if (std::chrono::steady_clock::now() > spin_end) {
          generation.wait(seen, std::memory_order_acquire);
          break;
        }
        _mm_pause();
      }
      const uint32_t current = generation.load(std::memory_order_acquire);
      if (current == seen) {
        continue;
      }
      seen = current;
      if (stop.load(std::memory_order_relaxed)) {
        return;
      }
      Work(worker);
      if (busy.fetch_sub(1, std::memory_order_release) == 1) {
        busy.notify_one();
      }
    }
  }
};

ComputePool::ComputePool(std::unique_ptr<Impl> impl, uint32_t num_workers)
    : impl_(std::move(impl)), num_workers_(num_workers) {}

absl::StatusOr<std::unique_ptr<ComputePool>> ComputePool::Create(
    const ComputePoolOptions& options) {
  const uint32_t workers = options.num_threads == 0 ? UsableCpus() : options.num_threads;
  if (workers > kMaxThreads) {
    return absl::InvalidArgumentError("threads must be in 1..1024, got " + std::to_string(workers));
  }
  auto impl = std::make_unique<Impl>();
  impl->shares = std::vector<Impl::Share>(workers);
  impl->warming.emplace(impl->expected, 0, workers);
  for (uint32_t i = 0; i < workers; ++i) {
    SPINDLE_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(kernels::kScratchBytes));
    impl->scratch.push_back(std::move(buffer));
  }
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const bool pin = options.pin && sched_getaffinity(0, sizeof(mask), &mask) == 0;
  if (pin) {
    PinTo(pthread_self(), mask, 0);
  }
  for (uint32_t i = 1; i < workers; ++i) {
    try {
      impl->threads.emplace_back([impl_ptr = impl.get(), i] { impl_ptr->Loop(i); });
    } catch (const std::system_error& e) {
      ComputePool partial(std::move(impl), i);  // joins what was started
      return absl::ResourceExhaustedError(std::string("cannot start a compute thread: ") +
                                          e.what());
    }
    const std::string name = "compute-" + std::to_string(i);
    pthread_setname_np(impl->threads.back().native_handle(), name.c_str());
    if (pin) {
      PinTo(impl->threads.back().native_handle(), mask, i);
    }
  }
  return std::unique_ptr<ComputePool>(new ComputePool(std::move(impl), workers));
}

ComputePool::~ComputePool() {
  impl_->stop = true;
  impl_->generation.fetch_add(1, std::memory_order_release);
  impl_->generation.notify_all();
  for (std::thread& thread : impl_->threads) {
    thread.join();
  }
}

absl::Status ComputePool::Run(uint32_t units, uint32_t grain, UnitFunction fn, Claiming claiming) {
  if (units == 0) {
    return absl::OkStatus();
  }
  Impl& impl = *impl_;
  grain = std::max(grain, 1U);
  const bool alone = units <= grain || impl.threads.empty();
  impl.Divide(units, grain, alone || claiming == Claiming::kInOrder ? 1 : num_workers_);
  impl.job.code.store(kernels::kOk, std::memory_order_relaxed);
  impl.job.fn = &fn;
  if (!alone) {
    impl.busy.store(static_cast<uint32_t>(impl.threads.size()), std::memory_order_relaxed);
    impl.generation.fetch_add(1, std::memory_order_release);
    impl.generation.notify_all();
  }
  impl.Work(0);
  if (!alone) {
    const auto spin_end = std::chrono::steady_clock::now() + kSpin;
    for (;;) {
      const uint32_t left = impl.busy.load(std::memory_order_acquire);
      if (left == 0) {
        break;
      }
      if (impl.warming->Turn()) {
        continue;
      }
      if (std::chrono::steady_clock::now() > spin_end) {
        impl.busy.wait(left, std::memory_order_acquire);
      } else {
        _mm_pause();
      }
    }
  }
  return ToStatus(impl.job.code.load(std::memory_order_relaxed));
}

void ComputePool::Expect(const void* data, size_t bytes) {
  impl_->expected.bytes.store(bytes, std::memory_order_relaxed);
  impl_->expected.data.store(static_cast<const uint8_t*>(data), std::memory_order_relaxed);
}

absl::Status ToStatus(int kernel_code) {
  switch (kernel_code) {
    case kernels::kOk:
      return absl::OkStatus();
    case kernels::kInvalidArgument:
      return absl::InternalError("kernel: argument outside its documented range");
    case kernels::kUnsupported:
      return absl::UnimplementedError("kernel: type or size without an implementation");
    case kernels::kScratchTooSmall:
      return absl::InternalError("kernel: worker scratch too small");
    default:
      return absl::InternalError("kernel: unknown code " + std::to_string(kernel_code));
  }
}

}  // namespace spindle::platform
