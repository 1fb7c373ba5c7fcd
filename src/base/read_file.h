// Small files whole: keys, certificates, templates, configuration. Thread-safety: pure function.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace spindle {

// The bytes of a regular file (symbolic links are followed). Folders, devices, pipes and sockets
// are refused, so that a wrong path can neither block nor grow without end.
// ERRORS, each with path and reason: kNotFound; kPermissionDenied; kInvalidArgument (no regular
// file, or longer than `max_bytes`); kUnavailable (the file system failed).
[[nodiscard]] absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes);

}  // namespace spindle
