// Loads of the disk tier beside plain reads of the same file, in one run: bytes per second of
// random records at a queue depth. The first argument is a folder on the device to measure, else
// the working directory.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status_macros.h"
#include "kv/disk/aligned_buffer.h"
#include "kv/disk/disk_store.h"

namespace spindle::kv::disk {
namespace {

constexpr uint64_t kNumStripes = 400;
constexpr size_t kDepth = 16;

std::string g_folder;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): set by main

// SmolLM2-135M: 1.41 MiB a stripe.
StoreIdentity Identity() {
  StoreIdentity identity;
  identity.geometry = {.num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .type = DType::kBF16};
  return identity;
}

DiskOptions Options(IoMode mode) {
  DiskOptions options;
  options.path = g_folder;
  options.capacity_bytes = uint64_t{8} << 30;
  options.io_mode = mode;
  return options;
}

Digest KeyOf(uint64_t number) {
  return Sha256().Number(number).Finish();
}

// A store with kNumStripes stripes.
std::unique_ptr<DiskStore> Open(IoMode mode, std::atomic<uint32_t>* wakes) {
  absl::StatusOr<std::unique_ptr<DiskStore>> opened =
      DiskStore::Open(Options(mode), Identity(), SystemFiles(), SteadyClock(), [wakes] {
        wakes->fetch_add(1);
        wakes->notify_one();
      });
  SPINDLE_CHECK(opened.ok());
  DiskStore& store = **opened;
  const AlignedBuffer stripe(Identity().geometry.stripe_bytes());
  std::fill(stripe.span().begin(), stripe.span().end(), uint8_t{0x5a});
  const ContentChecksum checksum = ChecksumOf(stripe.span());
  const std::array<TokenId, kStripeTokens> tokens{};
  std::array<Completion, 16> out;
  for (uint64_t i = 0; i < kNumStripes; ++i) {
    StoreRequest request;
    request.id.key = KeyOf(i);
    request.checksum = checksum;
    if (store.Contains(request.id)) {
      continue;
    }
    request.tokens = tokens;
    request.payload = stripe.span();
    while (!store.SubmitStore(request).ok()) {
      store.Tick();
      store.Poll(out);
    }
  }
  SPINDLE_CHECK(store.Flush().ok());
  while (store.Poll(out) > 0) {
  }
  return *std::move(opened);
}

void StoreLoads(benchmark::State& state, IoMode mode) {
  std::atomic<uint32_t> wakes{0};
  const std::unique_ptr<DiskStore> store = Open(mode, &wakes);
  const uint64_t stripe_bytes = Identity().geometry.stripe_bytes();
  const AlignedBuffer memory(kDepth * stripe_bytes);
  const std::array<TokenId, kStripeTokens> tokens{};
  std::mt19937_64 random(1);
  std::array<Completion, kDepth> out;
  const auto submit = [&](uint64_t slot) {
    LoadRequest request;
    request.id.key = KeyOf(random() % kNumStripes);
    request.tokens = tokens;
    request.destination = memory.span().subspan(slot * stripe_bytes, stripe_bytes);
    request.tag = slot;
    SPINDLE_CHECK(store->SubmitLoad(request).ok());
  };
  for (uint64_t slot = 0; slot < kDepth; ++slot) {
    submit(slot);
  }
  uint64_t loads = 0;
  for (auto _ : state) {
    size_t count = 0;
    for (;;) {
      const uint32_t before = wakes.load();
      count = store->Poll(out);
      if (count > 0) {
        break;
      }
      wakes.wait(before);
    }
    for (size_t i = 0; i < count; ++i) {
      SPINDLE_CHECK(out[i].status.ok());
      submit(out[i].tag);
    }
    loads += count;
  }
  SPINDLE_CHECK(store->Flush().ok());
  const DiskStats stats = store->Stats();
  state.SetBytesProcessed(static_cast<int64_t>(loads * stripe_bytes));
  state.counters["ring"] = stats.ring_active ? 1 : 0;
  state.counters["direct"] = stats.direct_active ? 1 : 0;
}

// The same reads by kDepth threads with plain calls: what the device gives.
void PlainReads(benchmark::State& state) {
  std::atomic<uint32_t> wakes{0};
  const std::string directory = Open(IoMode::kAuto, &wakes)->directory();
  std::vector<int> files;
  std::vector<uint64_t> sizes;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".kv") {
      files.push_back(open(entry.path().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
      sizes.push_back(entry.file_size());
      SPINDLE_CHECK(files.back() >= 0);
    }
  }
  const uint64_t record_bytes = Identity().geometry.stripe_bytes() + kAlignment;
  std::atomic<uint64_t> reads{0};
  std::atomic<bool> stop{false};
  const auto work = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    const AlignedBuffer buffer(record_bytes);
    while (!stop.load()) {
      const size_t file = random() % files.size();
      const uint64_t records = (sizes[file] - kAlignment) / record_bytes;
      const uint64_t at = kAlignment + random() % records * record_bytes;
      SPINDLE_CHECK(pread(files[file], buffer.data(), record_bytes, static_cast<off_t>(at)) ==
                    static_cast<ssize_t>(record_bytes));
      reads.fetch_add(1);
      reads.notify_one();
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kDepth; ++i) {
    threads.emplace_back(work, i);
  }
  uint64_t seen = 0;
  for (auto _ : state) {
    reads.wait(seen);
    seen = reads.load();
  }
  stop = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const int file : files) {
    close(file);
  }
  state.SetBytesProcessed(static_cast<int64_t>(seen * record_bytes));
}

}  // namespace
}  // namespace spindle::kv::disk

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  namespace disk = spindle::kv::disk;
  disk::g_folder = std::string(argc > 1 ? argv[1] : ".") + "/disk_bench_store";
  const auto register_case = [](const char* name, auto run) {
    benchmark::RegisterBenchmark(name, run)->UseRealTime()->MinTime(5.0)->Repetitions(3);
  };
  register_case("plain_reads_depth_16", [](benchmark::State& state) { disk::PlainReads(state); });
  register_case("store_loads_depth_16",
                [](benchmark::State& state) { disk::StoreLoads(state, disk::IoMode::kAuto); });
  register_case("store_loads_threads",
                [](benchmark::State& state) { disk::StoreLoads(state, disk::IoMode::kThreads); });
  benchmark::RunSpecifiedBenchmarks();
  std::filesystem::remove_all(disk::g_folder);
  return 0;
}
