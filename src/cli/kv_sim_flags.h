// Which options of `spindle kv sim` change what, so that one that would change nothing is refused.
// Internal to the command. Thread-safety: pure function.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"

namespace spindle::cli {

// What is simulated.
enum class KvSimInput : uint8_t { kDrawn, kScan, kCyclic, kPageTrace, kRequestTrace, kServing };

// `flags`: names of options, without dashes. ERRORS: kInvalidArgument naming the option and what it
// is for.
[[nodiscard]] absl::Status CheckFlags(const std::set<std::string>& flags, KvSimInput input);

}  // namespace spindle::cli
