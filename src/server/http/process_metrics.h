// The usual process_* families, read from /proc at each scrape. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "metrics/metrics.h"

namespace spindle::server {

struct ProcessUsage {
  double cpu_seconds = 0;  // user and system
  double start_time_unix_seconds = 0;
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  uint64_t open_fds = 0;
  uint64_t max_fds = 0;
  uint64_t num_threads = 0;
};

// Nothing when /proc cannot be read.
[[nodiscard]] std::optional<ProcessUsage> ReadProcessUsage();

// Adds the families to `registry`, refreshed at each scrape.
void RegisterProcessMetrics(metrics::Registry& registry);

}  // namespace spindle::server
