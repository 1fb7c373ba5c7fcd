#include "platform/compute_pool.h"

#include <algorithm>
#include <cstdlib>
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
          int expected = kernels::kOk;
          job.code.compare_exchange_strong(expected, code, std::memory_order_relaxed);
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
    for (;;) {
      const auto spin_end = std::chrono::steady_clock::now() + kSpin;
      while (generation.load(std::memory_order_acquire) == seen) {
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
      if (std::chrono::steady_clock::now() > spin_end) {
        impl.busy.wait(left, std::memory_order_acquire);
      } else {
        _mm_pause();
      }
    }
  }
  return ToStatus(impl.job.code.load(std::memory_order_relaxed));
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
