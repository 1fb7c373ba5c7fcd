// How many fast frames each running request may have: bounds, distribution of what is there, and
// how fast sizes may change. Pure functions over numbers. Sizes are frames per cache group, in
// multiples of kRunFrames; a request's frames are that times its groups. Thread-safety: pure
// functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace spindle::kv {

// Buffering pages per mandatory page that a request is guaranteed, and that it gets at most.
inline constexpr double kFloorBufferRatio = 1.0;
inline constexpr double kCeilingBufferRatio = 8.0;

// What a request needs, from its algorithm's declared budget before the first decode step and from
// measurements afterwards.
struct BudgetNeed {
  double mandatory_pages = 0;        // k: per group and step, those always selected among them
  double buffer_ratio = 5.0;         // buffering pages per mandatory page, from the request
  uint32_t total_pages = 0;          // of the context, per group
  uint32_t max_frames = UINT32_MAX;  // per group, from the request's own cap on fast bytes
};

struct BudgetBounds {
  uint32_t floor = 0;    // k · (1 + min(1, ratio)), within the cap: guaranteed while running
  uint32_t target = 0;   // k · (1 + ratio)
  uint32_t ceiling = 0;  // k · (1 + max(8, ratio)), no more than all pages
};

// floor ≤ target ≤ ceiling. Rounded up to runs, except that a cap is never exceeded.
[[nodiscard]] BudgetBounds BoundsOf(const BudgetNeed& need);

// Frames per group that `max_bytes` of fast memory pay for, after the request's index and metadata.
[[nodiscard]] uint32_t FramesForBytes(uint64_t max_bytes,
                                      uint64_t index_bytes,
                                      uint64_t frame_bytes,
                                      uint32_t num_groups);

// Microseconds saved per step by one more frame: pages that came back soon after they were evicted,
// spread over the evicted pages that are remembered.
[[nodiscard]] double MarginalGain(double refaults_per_step,
                                  double remembered_pages,
                                  double miss_cost_us);

struct BudgetRequest {
  BudgetBounds bounds;
  uint32_t num_groups = 0;
  double gain = 0;             // MarginalGain
  uint32_t current = 0;        // frames per group that it has
  double mandatory_pages = 0;  // k: what of `current` is not buffering
};

// Sizes that `capacity_frames` would be divided into from scratch: floors; then towards the targets
// in proportion to target − floor; then, to whoever gains most, up to the ceiling.
// Gains under min_gain_us do not count.
//   out     [requests.size()] frames per group
//   ERRORS: kResourceExhausted when the floors do not fit (out is unspecified): admission has to
//           decide again
[[nodiscard]] absl::Status Distribute(std::span<const BudgetRequest> requests,
                                      uint64_t capacity_frames,
                                      double min_gain_us,
                                      std::span<uint32_t> out);

// The size of the next step on the way from `current` to `wanted`: changes of less than 10 % are
// not made unless frames are short (a floor waits for some, or more are in use than there are),
// growth is limited to half of the present size, shrinking to a quarter of the buffering part; at
// least one run either way, never below the floor.
[[nodiscard]] uint32_t NextSize(const BudgetRequest& request, uint32_t wanted, bool is_short);

// Next sizes of all requests: shrinking first, growth (whoever is below its floor, then the largest
// gain) only out of what is free. Σ sizes · groups ≤ capacity if it was so before, and
// sizes that are too large together shrink until it is so.
//   wanted  [requests.size()] from Distribute
//   out     [requests.size()]
void NextSizes(std::span<const BudgetRequest> requests,
               std::span<const uint32_t> wanted,
               uint64_t capacity_frames,
               std::span<uint32_t> out);

}  // namespace spindle::kv
