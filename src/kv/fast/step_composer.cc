#include "kv/fast/step_composer.h"

#include <algorithm>

namespace spindle::kv {

uint32_t ComposeStep(std::span<const StepCandidate> candidates,
                     uint64_t capacity_frames,
                     std::vector<uint32_t>* order,
                     std::span<uint8_t> out) {
  order->clear();
  for (uint32_t i = 0; i < candidates.size(); ++i) {
    order->push_back(i);
    out[i] = 0;
  }
  const auto waited = [&](uint32_t i) {
    const uint32_t steps = candidates[i].skipped_steps;
    return steps >= kMaxSkippedSteps ? steps : 0;
  };
  // In place; ties by index, which keeps the schedule order.
  std::sort(order->begin(), order->end(), [&](uint32_t a, uint32_t b) {
    return waited(a) != waited(b) ? waited(a) > waited(b) : a < b;
  });
  uint64_t used = 0;
  uint32_t taken = 0;
  for (const uint32_t i : *order) {
    const uint64_t need = std::max(candidates[i].floor_frames, candidates[i].working_set_frames);
    if (taken > 0 && used + need > capacity_frames) {
      break;
    }
    used += need;
    out[i] = 1;
    ++taken;
  }
  return taken;
}

}  // namespace spindle::kv
