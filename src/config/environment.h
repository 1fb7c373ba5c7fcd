// The process environment; the only place that reads it.
// Thread-safety: call before threads start.
#pragma once

#include <map>
#include <string>

namespace spindle::config {

// All variables whose name begins with SPINDLE_.
[[nodiscard]] std::map<std::string, std::string> SpindleVariables();

}  // namespace spindle::config
