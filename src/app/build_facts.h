// What this binary is, fixed at build time.
// Thread-safety: constants.
#pragma once

#include <string_view>

namespace spindle::app {

extern const std::string_view kVersion;
extern const std::string_view kCommit;  // short hash of the checkout, or "unknown"
extern const std::string_view kBuild;   // compiler and build type

}  // namespace spindle::app
