#include "app/memory_plan.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/prefix_key.h"

namespace spindle::app {

uint64_t MemoryPlan::total_bytes() const {
  uint64_t total = 0;
  for (const auto& [part, bytes] : parts_) {
    total += bytes;
  }
  return total;
}

absl::Status MemoryPlan::Check(uint64_t available_bytes) const {
  const uint64_t limit = available_bytes / 100 * 95;
  if (total_bytes() <= limit) {
    return absl::OkStatus();
  }
  std::string message = fmt::format("the memory plan of {} passes 95 % of the {} available:",
                                    HumanBytes(total_bytes()),
                                    HumanBytes(available_bytes));
  for (const auto& [part, bytes] : parts_) {
    message += fmt::format(" {} {};", part, HumanBytes(bytes));
  }
  message += " lower --kv-host-bytes, --max-num-batched-tokens or --max-num-seqs";
  return absl::ResourceExhaustedError(message);
}

uint64_t DefaultKvBytes(uint64_t total_memory_bytes,
                        uint32_t max_num_seqs,
                        uint32_t max_model_len,
                        uint64_t stripe_bytes) {
  const uint64_t stripes_per_sequence = (max_model_len + kStripeTokens - 1) / kStripeTokens;
  const uint64_t all_sequences = max_num_seqs * stripes_per_sequence * stripe_bytes;
  const uint64_t share = total_memory_bytes / 4 / stripe_bytes * stripe_bytes;
  return std::max(std::min(all_sequences, share), 2 * stripe_bytes);
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace spindle::app
