// What the step loop allocates. Its own binary, since the counter replaces operator new.
#include <gtest/gtest.h>

#include "support/allocation_counter.h"
#include "support/engine_world.h"

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
    const uint64_t before = test::AllocationCount();
    world.core.Step();
    for (const auto& client : clients) {
      while (client->stream().Next(&event)) {
        ++num_tokens;
      }
    }
    const uint64_t allocations = test::AllocationCount() - before;
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
