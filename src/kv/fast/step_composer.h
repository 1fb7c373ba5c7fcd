// Which decoding requests take part in a step, so that the pages they are about to use fit into the
// fast tier together; the others keep their host copy and skip the step. Pure function.
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spindle::kv {

// A request that waited this many steps goes before all others, longest wait first.
inline constexpr uint32_t kMaxSkippedSteps = 63;

struct StepCandidate {
  uint64_t floor_frames = 0;
  uint64_t working_set_frames = 0;
  uint32_t skipped_steps = 0;  // since it last took part
};

// Walks the candidates in schedule order (those that waited too long first) and takes them while
// Σ max(floor, working set) ≤ capacity_frames; stops at the first that does not fit. The first one
// always takes part. With room for c candidates a step, each takes part at least once in
// max(64, n / c + 1) steps.
//   out  [candidates.size()] whether it takes part
// Returns how many do. Allocates nothing when `order` has room.
uint32_t ComposeStep(std::span<const StepCandidate> candidates,
                     uint64_t capacity_frames,
                     std::vector<uint32_t>* order,
                     std::span<uint8_t> out);

}  // namespace spindle::kv
