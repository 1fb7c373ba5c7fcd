#include "kv/sim/serving_sim.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "unit/kv_sim/serving_sim_util.h"

namespace spindle::kv::sim {
namespace {

TEST(MachineModel, CopiesCostCommandsAndBytes) {
  const LinkModel link;
  EXPECT_EQ(link.CopyTime(0, 0), Duration(0));
  EXPECT_EQ(link.CopyTime(10, 0), std::chrono::microseconds(30));
  EXPECT_EQ(link.CopyTime(0, 25'000'000), std::chrono::milliseconds(1));
}

// Computing for 30 ms and copying for 24: what is left of the copies.
TEST(MachineModel, PrefetchHidesCopiesThatAreShorterThanComputing) {
  using std::chrono::microseconds;
  using std::chrono::milliseconds;
  EXPECT_EQ(PipelinedStepTime(milliseconds(30), milliseconds(24), 30, 0), milliseconds(54));
  // The first layer's copy, and then none.
  EXPECT_EQ(PipelinedStepTime(milliseconds(30), milliseconds(24), 30, 1), microseconds(30'800));
  EXPECT_EQ(PipelinedStepTime(milliseconds(30), milliseconds(24), 30, 2), microseconds(30'800));
  // Longer copies: the link is busy all the time, then the last layer computes.
  EXPECT_EQ(PipelinedStepTime(milliseconds(30), milliseconds(60), 30, 2), milliseconds(61));
  EXPECT_EQ(PipelinedStepTime(milliseconds(30), Duration(0), 30, 1), milliseconds(30));
}

TEST(ServingSim, PrefetchTakesTheStallsWhereTheLinkKeepsUp) {
  ServingSimOptions options = SmallServer(8);
  options.link.bytes_per_second = 2e9;
  const auto serial = SimulateServing(options);
  options.prefetch_depth = 1;
  const auto ahead = SimulateServing(options);
  ASSERT_TRUE(serial.ok() && ahead.ok());
  EXPECT_GT(serial->stall_share, 0.02);
  EXPECT_LT(serial->stall_share, 0.44);  // copies take less than 0.8 of computing
  EXPECT_LT(ahead->stall_share, 0.1);
  EXPECT_LT(ahead->stall_share, serial->stall_share / 5);
}

TEST(ServingSim, CopiesByWhoComputesAreNeverHidden) {
  ServingSimOptions options = SmallServer(8);
  options.link.bytes_per_second = 2e9;
  const auto serial = SimulateServing(options);
  options.prefetch_depth = 2;
  options.async_copies = false;
  const auto foretold = SimulateServing(options);
  ASSERT_TRUE(serial.ok() && foretold.ok());
  EXPECT_EQ(foretold->end, serial->end);
  EXPECT_EQ(foretold->stall_share, serial->stall_share);
  const double compute = ToSeconds(serial->compute_time);
  const double link = ToSeconds(serial->link_time);
  EXPECT_NEAR(serial->stall_share, link / (compute + link), 1e-9);
}

TEST(ServingSim, EveryRequestIsAnsweredOnce) {
  const auto result = SimulateServing(SmallServer(1));
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectAnsweredOnce(*result);
  EXPECT_GT(result->completed, 20U);
  EXPECT_EQ(result->refused_busy, 0U);
  EXPECT_EQ(result->refused_closing, 0U);
  EXPECT_EQ(result->ttft_seconds.size(), result->completed);
  EXPECT_GT(result->prefix_tokens, 0U);
  EXPECT_GT(result->page_hits, result->page_misses);
  EXPECT_GT(result->link_bytes, 0U);
  EXPECT_GT(result->stall_share, 0.0);
  EXPECT_LT(result->stall_share, 1.0);
}

TEST(ServingSim, TheSameSeedIsTheSameRun) {
  const auto first = SimulateServing(SmallServer(2));
  const auto second = SimulateServing(SmallServer(2));
  const auto other = SimulateServing(SmallServer(3));
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_EQ(first->ttft_seconds, second->ttft_seconds);
  EXPECT_EQ(first->page_misses, second->page_misses);
  EXPECT_EQ(first->end, second->end);
  EXPECT_NE(first->ttft_seconds, other->ttft_seconds);
}

TEST(ServingSim, OverloadIsRefusedAndTheRestServed) {
  ServingSimOptions options = SmallServer(4);
  options.arrivals_per_second *= 20;
  const auto result = SimulateServing(options);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectAnsweredOnce(*result);
  EXPECT_GT(result->refused_busy, result->completed);
  EXPECT_LE(result->second_half.queued_tokens, options.max_queued_tokens);
  EXPECT_LE(result->second_half.waiting, options.max_waiting);
  // Busy all the time: not less than the unloaded machine completed in it.
  const auto calm = SimulateServing(SmallServer(4));
  ASSERT_TRUE(calm.ok());
  EXPECT_GE(result->completed, calm->completed);
}

// Loose selections at the smallest budgets over a slow link: pages come back soon after they went.
TEST(ServingSim, RequestsThatThrashArePausedAndStillServed) {
  ServingSimOptions options = SmallServer(7);
  options.profile = kLooseProfile;
  options.buffer_ratio = 1;
  options.min_output_tokens = 100;
  options.max_output_tokens = 200;
  options.link.bytes_per_second = 20e6;
  options.drain_time = std::chrono::seconds(600);
  const auto result = SimulateServing(options);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectAnsweredOnce(*result);
  EXPECT_GT(result->pauses, 0U);
  EXPECT_GT(result->stall_share, 0.8);
  EXPECT_EQ(result->refused_closing, 0U);
  EXPECT_EQ(result->refused_never, 0U);
}

TEST(ServingSim, WhatCanNeverFitIsRefusedAtOnce) {
  ServingSimOptions options = SmallServer(5);
  options.host_bytes = 12 * options.geometry.stripe_bytes();
  const auto result = SimulateServing(options);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectAnsweredOnce(*result);
  EXPECT_GT(result->refused_never, 0U);
  EXPECT_GT(result->completed, 0U);
}

TEST(ServingSim, RefusesOptionsOutOfRange) {
  struct Case {
    const char* name;
    void (*change)(ServingSimOptions&);
  };

  using O = ServingSimOptions;
  constexpr uint32_t kTooLong = (1U << 20) + 1;
  const std::vector<Case> cases = {
      {"arrivals_per_second", [](O& o) { o.arrivals_per_second = 0; }},
      {"arrivals_per_second", [](O& o) { o.arrivals_per_second = 2e6; }},
      {"arrival_time", [](O& o) { o.arrival_time = Duration(0); }},
      {"drain_time", [](O& o) { o.drain_time = Duration(-1); }},
      {"prompt tokens", [](O& o) { o.min_prompt_tokens = 0; }},
      {"prompt tokens", [](O& o) { o.min_prompt_tokens = o.max_prompt_tokens + 1; }},
      {"prompt tokens", [](O& o) { o.max_prompt_tokens = kTooLong; }},
      {"output tokens", [](O& o) { o.min_output_tokens = 0; }},
      {"output tokens", [](O& o) { o.max_output_tokens = kTooLong; }},
      {"num_shared_prompts", [](O& o) { o.num_shared_prompts = 0; }},
      {"sampled_groups", [](O& o) { o.sampled_groups = 91; }},
      {"selected_pages", [](O& o) { o.selected_pages = 0; }},
      {"selected_pages", [](O& o) { o.selected_pages = 4096; }},
      {"buffer_ratio", [](O& o) { o.buffer_ratio = -1; }},
      {"buffer_ratio", [](O& o) { o.buffer_ratio = 16; }},
      {"prefill_chunk_tokens", [](O& o) { o.prefill_chunk_tokens = 100; }},
      {"max_running", [](O& o) { o.max_running = 0; }},
  };
  ASSERT_TRUE(ValidateServingSimOptions(SmallServer(6)).ok());
  for (const Case& each : cases) {
    ServingSimOptions options = SmallServer(6);
    each.change(options);
    const absl::Status status = SimulateServing(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << each.name;
    EXPECT_NE(status.message().find(each.name), std::string::npos) << status;
  }
  ServingSimOptions options = SmallServer(6);
  options.fast_bytes = 4096;
  EXPECT_EQ(SimulateServing(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace spindle::kv::sim
