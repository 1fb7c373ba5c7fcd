// Failures of loading that an option causes and not the model. Such a status is like any other but
// for a mark, which decides the exit code. Thread-safety: pure functions.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace spindle::config {

// `status` with the mark. For messages that name the option already. REQUIRES: not OK.
[[nodiscard]] absl::Status OptionError(absl::Status status);

// The same, with `option` (and its value, where that helps) before the message.
[[nodiscard]] absl::Status OptionError(std::string_view option, const absl::Status& status);

[[nodiscard]] bool IsOptionError(const absl::Status& status);

}  // namespace spindle::config
