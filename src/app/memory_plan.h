// Every memory bound the server will hold, summed before anything is taken.
// Thread-safety: plain value.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace spindle::app {

class MemoryPlan {
 public:
  void Add(std::string part, uint64_t bytes) { parts_.emplace_back(std::move(part), bytes); }

  [[nodiscard]] uint64_t total_bytes() const;

  [[nodiscard]] const std::vector<std::pair<std::string, uint64_t>>& parts() const {
    return parts_;
  }

  // ERRORS: kResourceExhausted when the sum passes 95 % of `available_bytes`, with a line per part.
  [[nodiscard]] absl::Status Check(uint64_t available_bytes) const;

 private:
  std::vector<std::pair<std::string, uint64_t>> parts_;
};

// KV bytes when the user gave none: min(25 % of RAM, what all sequences at full length need), whole
// stripes, at least two.
[[nodiscard]] uint64_t DefaultKvBytes(uint64_t total_memory_bytes,
                                      uint32_t max_num_seqs,
                                      uint32_t max_model_len,
                                      uint64_t stripe_bytes);

// "1.5 GiB".
[[nodiscard]] std::string HumanBytes(uint64_t bytes);

}  // namespace spindle::app
