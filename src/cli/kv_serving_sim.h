// `spindle kv sim --serve RATE`: a server under load on a virtual clock. Thread-safety: call from
// one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "config/option_table.h"

namespace spindle::cli {

struct KvServingSimOptions {
  float requests_per_second = 0;  // 0: not asked for
  std::chrono::nanoseconds arrival_time = std::chrono::seconds(60);
  uint64_t fast_bytes = uint64_t{128} << 20;
  uint64_t host_bytes = uint64_t{4} << 30;
  float link_gigabytes_per_second = 25.0F;
  float buffer_ratio = 5.0F;
  uint32_t prefetch_depth = 0;
  bool async_copies = true;
  uint32_t max_prompt_tokens = 4096;
  uint32_t max_output_tokens = 256;
};

// Borrows the options.
void AddKvServingSimOptions(config::OptionTable& table, KvServingSimOptions& options);

// The report, a table or JSON. `profile`: sticky, medium or loose.
// ERRORS: kInvalidArgument naming the option and its range; those of SimulateServing.
absl::StatusOr<std::string> KvServingSim(const KvServingSimOptions& options,
                                         const std::string& profile,
                                         bool json);

}  // namespace spindle::cli
