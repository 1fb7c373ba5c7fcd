// A small server to simulate, and what holds of every run. Thread-safety: single-threaded tests.
#pragma once

#include <cstdint>

#include <gtest/gtest.h>

#include "kv/sim/serving_sim.h"

namespace spindle::kv::sim {

// About 60 requests of a few hundred tokens; the fast tier holds a part of their pages.
inline ServingSimOptions SmallServer(uint64_t seed) {
  ServingSimOptions options;
  options.seed = seed;
  options.arrivals_per_second = 2;
  options.arrival_time = std::chrono::seconds(30);
  options.drain_time = std::chrono::seconds(60);
  options.min_prompt_tokens = 64;
  options.max_prompt_tokens = 1024;
  options.min_output_tokens = 1;
  options.max_output_tokens = 64;
  options.shared_prompt_tokens = 128;
  options.selected_pages = 8;
  options.fast_bytes = uint64_t{24} << 20;
  options.host_bytes = uint64_t{256} << 20;
  options.max_waiting = 32;
  options.max_queued_tokens = 20'000;
  return options;
}

inline void ExpectAnsweredOnce(const ServingSimResult& result) {
  EXPECT_EQ(result.completed + result.refused_busy + result.refused_never + result.refused_closing,
            result.arrived);
}

}  // namespace spindle::kv::sim
