#include "sparse/replay/replay_algorithm.h"

#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"

namespace spindle::sparse {

ReplayAlgorithm::ReplayAlgorithm(PageSchedule schedule) : schedule_(std::move(schedule)) {
  SPINDLE_CHECK(schedule_.page_tokens > 0 && kStripeTokens % schedule_.page_tokens == 0);
  SPINDLE_CHECK(!schedule_.pages.empty());
  SPINDLE_CHECK(schedule_.pages.size() == size_t{schedule_.num_steps} * schedule_.num_layers *
                                              schedule_.num_kv_heads * schedule_.pages_per_step);
}

void ReplayAlgorithm::Select(const SelectJob& job,
                             SelectWorkspace& /*workspace*/,
                             Selection* out) const {
  const uint32_t num_tokens = job.num_tokens();
  const auto pages_per_tile = static_cast<uint32_t>(kStripeTokens / schedule_.page_tokens);
  const uint64_t page_mask = ~uint64_t{0} >> (kStripeTokens - schedule_.page_tokens);
  const uint32_t num_pages = (num_tokens + schedule_.page_tokens - 1) / schedule_.page_tokens;
  const uint32_t last_tile = (num_tokens - 1) / static_cast<uint32_t>(kStripeTokens);
  const size_t group =
      (size_t{job.decode_step % schedule_.num_steps} * schedule_.num_layers + job.layer.value()) *
          schedule_.num_kv_heads +
      job.head.value();
  const std::span<const uint32_t> drawn =
      std::span(schedule_.pages)
          .subspan(group * schedule_.pages_per_step, schedule_.pages_per_step);
  const auto add = [out](uint32_t tile, uint64_t live) {
    if (out->tiles.empty() || out->tiles.back().tile != tile) {
      out->tiles.push_back({.tile = tile, .live = 0});
    }
    out->tiles.back().live |= live;
  };
  add(0, page_mask);
  for (const uint32_t page : drawn) {
    const auto scaled = static_cast<uint32_t>(uint64_t{page} * num_pages / schedule_.num_pages);
    add(scaled / pages_per_tile, page_mask << (scaled % pages_per_tile * schedule_.page_tokens));
  }
  add(last_tile, ~uint64_t{0});
  // Nothing beyond the row itself.
  out->tiles.back().live &= ~uint64_t{0} >> (kStripeTokens - 1 - (num_tokens - 1) % kStripeTokens);
}

uint32_t ReplayAlgorithm::max_pages() const {
  return schedule_.pages_per_step + 1 +
         static_cast<uint32_t>(kStripeTokens / schedule_.page_tokens);
}

}  // namespace spindle::sparse
