#include "sparse/streaming/streaming_algorithm.h"

#include <algorithm>

#include "sparse/fixed_partitions.h"

namespace spindle::sparse {

void StreamingAlgorithm::Select(const SelectJob& job,
                                SelectWorkspace& /*workspace*/,
                                Selection* out) const {
  const SparseSettings& settings = *job.settings;
  const uint64_t recent =
      uint64_t{std::max(1U, settings.recent_tokens)} + uint64_t{job.budget_tokens};
  const uint32_t num_tokens = job.num_tokens();
  const auto window = static_cast<uint32_t>(num_tokens - std::min<uint64_t>(num_tokens, recent));
  WriteSinkAndWindow(settings.sink_tokens, window, num_tokens, &out->tiles);
}

}  // namespace spindle::sparse
