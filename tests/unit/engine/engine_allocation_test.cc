// Counts heap allocations of the step loop. Its own binary, since it replaces operator new.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "support/engine_world.h"

namespace {

std::atomic<uint64_t> num_allocations{0};

void* Allocate(std::size_t bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return Allocate(bytes);
}

void* operator new[](std::size_t bytes) {
  return Allocate(bytes);
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete[](void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace spindle::engine {
namespace {

using testing::Client;
using testing::EngineWorld;
using testing::MakePrompt;
using testing::MakeRequest;

TEST(EngineAllocation, SteadyDecodeAllocatesNothingPerToken) {
  EngineWorld world({});
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t i = 0; i < 4; ++i) {
    EngineRequest request = MakeRequest(MakePrompt(30 + i, i), 250);
    request.sampling.ignore_eos = true;
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.9F;
    request.sampling.top_p = 0.9F;
    request.sampling.frequency_penalty = 0.2F;
    request.sampling.repetition_penalty = 1.1F;
    clients.push_back(world.Submit(request));
  }
  for (int step = 0; step < 10; ++step) {
    world.core.Step();
  }
  StreamEvent event;
  uint64_t num_tokens = 0;
  uint64_t num_quiet_steps = 0;
  for (int step = 0; step < 200; ++step) {
    const uint64_t sealed_before = world.store->Stats().prefix_entries;
    const uint64_t before = num_allocations.load();
    world.core.Step();
    for (const auto& client : clients) {
      while (client->stream().Next(&event)) {
        ++num_tokens;
      }
    }
    const uint64_t allocations = num_allocations.load() - before;
    const uint64_t num_sealed = world.store->Stats().prefix_entries - sealed_before;
    // A new stripe's key takes a hash context; nothing else may allocate.
    EXPECT_LE(allocations, num_sealed) << "step " << step;
    num_quiet_steps += allocations == 0 ? 1 : 0;
  }
  EXPECT_GE(num_tokens, 800U);
  EXPECT_GE(num_quiet_steps, 180U);
}

}  // namespace
}  // namespace spindle::engine
