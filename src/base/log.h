// Structured logging: an event name and key=value fields, one line each, text or JSON. Include only
// from .cc files (it pulls in spdlog); no module header may expose it. Prompt and output text are
// never logged. Thread-safety: thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "absl/status/status.h"
#include "base/log_options.h"

namespace spindle::log {

// Called once by app; later calls (SIGHUP) reopen the file and change the level.
// ERRORS: kUnavailable when the file cannot be opened.
absl::Status Configure(const Options& options);
void SetLevel(Level level);
[[nodiscard]] bool Enabled(Level level);

// One field of a line; the value is formatted once, `quoted` tells the JSON form whether it is a
// string.
struct Field {
  std::string_view key;
  std::string value;
  bool quoted;

  template <typename T>
  Field(std::string_view k,
        const T& v)  // NOLINT(google-explicit-constructor): {"key", value} at call sites
      : key(k),
        value(fmt::format("{}", v)),
        quoted(!std::is_arithmetic_v<T> || std::is_same_v<T, char>) {}
};

// Writes `event key=value …` (or a JSON object). Newlines in values are escaped.
void Write(Level level, std::string_view event, const std::vector<Field>& fields);

inline void Info(std::string_view event, const std::vector<Field>& fields = {}) {
  Write(Level::kInfo, event, fields);
}

inline void Warn(std::string_view event, const std::vector<Field>& fields = {}) {
  Write(Level::kWarn, event, fields);
}

inline void Error(std::string_view event, const std::vector<Field>& fields = {}) {
  Write(Level::kError, event, fields);
}

inline void Debug(std::string_view event, const std::vector<Field>& fields = {}) {
  if (Enabled(Level::kDebug)) {
    Write(Level::kDebug, event, fields);
  }
}

}  // namespace spindle::log
