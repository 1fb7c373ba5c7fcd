// A server's life on a virtual clock: requests arrive, wait, are admitted, prefilled and decoded,
// while the production host store, fast tier, budgets, step composition and thrash controller do
// what they would do; only time is modelled. Pages hold nothing, and of all (layer, head) groups of
// a request a few stand for the rest. Deterministic for a seed. Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "kv/kv_geometry.h"
#include "kv/sim/machine_model.h"
#include "kv/sim/selection_generator.h"

namespace spindle::kv::sim {

struct ServingSimOptions {
  uint64_t seed = 0;

  // Requests: Poisson arrivals for a while, then none. Lengths are uniform.
  double arrivals_per_second = 1.0;
  Duration arrival_time = std::chrono::seconds(60);
  Duration drain_time = std::chrono::seconds(60);  // what waits longer is answered 503
  uint32_t min_prompt_tokens = 512;
  uint32_t max_prompt_tokens = 4096;
  uint32_t min_output_tokens = 16;
  uint32_t max_output_tokens = 256;
  uint32_t num_shared_prompts = 4;  // system prompts; each request begins with one
  uint32_t shared_prompt_tokens = 256;

  // Model and selections.
  KvGeometry geometry = {.num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
  uint32_t sampled_groups = 2;  // simulated for all layers × heads
  SelectionProfile profile = kMediumProfile;
  uint32_t selected_pages = 32;  // of a context that has as many
  double buffer_ratio = 5.0;

  // Machine.
  ComputeModel compute;
  LinkModel link;
  uint32_t prefetch_depth = 0;  // layers, see PipelinedStepTime; prediction is taken as perfect
  // An engine of its own copies. False: whoever computes copies, so that nothing overlaps at any
  // depth.
  bool async_copies = true;
  uint64_t fast_bytes = uint64_t{128} << 20;
  uint64_t host_bytes = uint64_t{4} << 30;

  // Limits.
  uint32_t max_running = 64;
  uint32_t max_waiting = 512;
  uint64_t max_queued_tokens = 200'000;  // of prompts that wait
  uint32_t prefill_chunk_tokens = 512;
};

struct ServingSimResult {
  // Every request that arrived is in exactly one of these.
  uint64_t completed = 0;        // 200
  uint64_t refused_busy = 0;     // 429 on arrival
  uint64_t refused_never = 0;    // 400: no empty machine could run it
  uint64_t refused_closing = 0;  // 503: still there at the end of the drain

  uint64_t arrived = 0;
  uint64_t output_tokens = 0;  // of completed requests
  uint64_t steps = 0;
  Duration end{};  // of the last step

  std::vector<double> ttft_seconds;   // of completed requests, in order of completion
  std::vector<double> tpot_seconds;   // of those with two tokens or more
  Duration longest_wait{};            // from arrival to admission
  uint64_t longest_barren_steps = 0;  // most steps in a row in which no request got on

  uint64_t page_hits = 0;  // of sampled groups
  uint64_t page_misses = 0;
  uint64_t prefix_tokens = 0;  // of prompts, from the cache
  uint64_t link_bytes = 0;     // of all groups
  double stall_share = 0;      // of the time of steps, in which nothing computed
  Duration compute_time{};     // of all steps
  Duration link_time{};        // that the link was busy
  uint64_t pauses = 0;

  // Largest values in the first and in the second half of the time of arrivals.
  struct Peaks {
    uint64_t waiting = 0;
    uint64_t queued_tokens = 0;
    uint64_t running = 0;
    uint64_t host_stripes = 0;  // owned
    uint64_t fast_frames = 0;   // owned
    uint64_t metadata_bytes = 0;
  };

  Peaks first_half;
  Peaks second_half;
};

// ERRORS: kInvalidArgument naming the option and its range.
[[nodiscard]] absl::Status ValidateServingSimOptions(const ServingSimOptions& options);

// ERRORS: kInvalidArgument naming the option and its range; kResourceExhausted (memory of this
// process); kInternal (an invariant of the managers broke).
[[nodiscard]] absl::StatusOr<ServingSimResult> SimulateServing(const ServingSimOptions& options);

}  // namespace spindle::kv::sim
