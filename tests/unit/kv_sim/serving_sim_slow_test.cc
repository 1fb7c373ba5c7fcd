// Ten times as much as the machine can do, and ten thousand small worlds.
#include <cmath>
#include <cstdint>
#include <iostream>

#include <gtest/gtest.h>

#include "kv/sim/pcg64.h"
#include "kv/sim/serving_sim.h"
#include "support/random_seed.h"
#include "unit/kv_sim/serving_sim_util.h"

namespace spindle::kv::sim {
namespace {

double TokensPerSecond(const ServingSimResult& result) {
  return static_cast<double>(result.output_tokens) / ToSeconds(result.end);
}

// Requests of 1K to 6K tokens on a machine whose fast tier holds a tenth of what runs.
ServingSimOptions LongContextServer(uint64_t seed) {
  ServingSimOptions options;
  options.seed = seed;
  options.min_prompt_tokens = 1024;
  options.max_prompt_tokens = 6144;
  options.min_output_tokens = 32;
  options.max_output_tokens = 256;
  options.sampled_groups = 1;
  options.fast_bytes = uint64_t{192} << 20;
  options.host_bytes = uint64_t{2} << 30;
  options.max_running = 32;
  options.max_waiting = 64;
  options.drain_time = std::chrono::seconds(120);
  return options;
}

TEST(ServingSimSlow, TenfoldOverloadForTenMinutesStaysFlatAndServesItsCapacity) {
  const uint64_t seed = test::RandomSeed(61);
  // Capacity: a machine that always has something to do and refuses as little as it can.
  ServingSimOptions options = LongContextServer(seed);
  options.arrivals_per_second = 4;
  options.arrival_time = std::chrono::seconds(120);
  const auto saturated = SimulateServing(options);
  ASSERT_TRUE(saturated.ok()) << saturated.status();
  ASSERT_GT(saturated->refused_busy, 0U) << "not saturated";
  const double capacity = TokensPerSecond(*saturated);
  const double requests_per_second =
      static_cast<double>(saturated->completed) / ToSeconds(saturated->end);

  options.seed = seed + 1;
  options.arrivals_per_second = 10 * requests_per_second;
  options.arrival_time = std::chrono::minutes(10);
  const auto result = SimulateServing(options);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectAnsweredOnce(*result);
  std::cout << "capacity " << capacity << " tokens/s, under overload " << TokensPerSecond(*result)
            << "; arrived " << result->arrived << ", completed " << result->completed << ", busy "
            << result->refused_busy << ", longest wait " << ToSeconds(result->longest_wait)
            << " s, pauses " << result->pauses << ", steps " << result->steps << '\n';
  EXPECT_GT(result->arrived, 9 * result->completed);
  EXPECT_EQ(result->refused_never, 0U);
  EXPECT_EQ(result->refused_closing, 0U);
  EXPECT_GE(TokensPerSecond(*result), 0.8 * capacity);
  // Nothing grows: bounded, and no more in the second half than in the first.
  EXPECT_LE(result->second_half.waiting, options.max_waiting);
  EXPECT_LE(result->second_half.queued_tokens, options.max_queued_tokens);
  EXPECT_LE(result->second_half.running, options.max_running);
  EXPECT_LE(static_cast<double>(result->second_half.metadata_bytes),
            1.1 * static_cast<double>(result->first_half.metadata_bytes));
  EXPECT_LE(static_cast<double>(result->second_half.host_stripes),
            1.1 * static_cast<double>(result->first_half.host_stripes));
  // First come, first served: nobody waits longer than what the queue may hold takes.
  EXPECT_LT(
      ToSeconds(result->longest_wait),
      1.5 * static_cast<double>(options.max_waiting + options.max_running) / requests_per_second);
  EXPECT_LE(result->longest_barren_steps, 64U);
}

TEST(ServingSimSlow, SomeRequestGetsOnInTenThousandWorlds) {
  const uint64_t first_seed = test::RandomSeed(62);
  constexpr uint64_t kWorlds = 10'000;
  uint64_t completed = 0;
  uint64_t refused = 0;
  for (uint64_t seed = first_seed; seed < first_seed + kWorlds; ++seed) {
    Pcg64 random(seed, /*stream=*/1);
    ServingSimOptions options = SmallServer(seed);
    options.arrival_time = std::chrono::milliseconds(300 + random.Below(1500));
    options.arrivals_per_second = 1.0 + 20 * random.Uniform();
    options.min_prompt_tokens = 1 + static_cast<uint32_t>(random.Below(200));
    options.max_prompt_tokens =
        options.min_prompt_tokens + static_cast<uint32_t>(random.Below(600));
    options.max_output_tokens = 1 + static_cast<uint32_t>(random.Below(24));
    options.selected_pages = 1 + static_cast<uint32_t>(random.Below(12));
    options.buffer_ratio = static_cast<double>(random.Below(7));
    options.sampled_groups = 1;
    options.fast_bytes = (uint64_t{6} << 20) + random.Below(uint64_t{20} << 20);
    options.host_bytes = options.geometry.stripe_bytes() * (2 + random.Below(80));
    options.max_running = 1 + static_cast<uint32_t>(random.Below(8));
    options.max_waiting = static_cast<uint32_t>(random.Below(12));
    // From a link that is nearly all of a step to one that is nothing.
    options.link.bytes_per_second = 1e7 * std::pow(1000.0, random.Uniform());
    options.profile = random.Below(2) == 0 ? kLooseProfile : kStickyProfile;
    const auto result = SimulateServing(options);
    ASSERT_TRUE(result.ok()) << "seed " << seed << ": " << result.status();
    ExpectAnsweredOnce(*result);
    ASSERT_LE(result->longest_barren_steps, 64U) << "seed " << seed;
    ASSERT_EQ(result->refused_closing, 0U) << "seed " << seed;
    completed += result->completed;
    refused += result->refused_busy + result->refused_never;
  }
  std::cout << "completed " << completed << ", refused " << refused << '\n';
  EXPECT_GT(completed, 2 * kWorlds);
  EXPECT_GT(refused, kWorlds / 10);
}

}  // namespace
}  // namespace spindle::kv::sim
