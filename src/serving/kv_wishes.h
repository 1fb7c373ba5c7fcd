// What a request says about its KV, as JSON and typed callers give it: types are right, values are
// not checked yet (CompletionService::ApplyKv does). Thread-safety: plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace spindle::serving {

struct KvWishes {
  // Cap on its pages in the fast tier: bytes, or a share of that tier; one of the two.
  std::optional<int64_t> fast_tier_budget_bytes;
  std::optional<double> fast_tier_budget_fraction;
  std::optional<double> buffer_ratio;   // wanted pages kept from earlier steps, per mandatory page
  std::optional<std::string> max_tier;  // slowest tier that may hold it: "host" or "disk"
  bool reuse_sparse = false;
  std::optional<int64_t> retention_seconds;  // kept on disk that long after the end
  std::optional<std::string> session;        // … under this name
};

}  // namespace spindle::serving
