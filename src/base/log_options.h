// Options of the logger; apart from log.h, which only sources include.
#pragma once

#include <cstdint>
#include <string>

namespace spindle::log {

enum class Level : uint8_t { kTrace, kDebug, kInfo, kWarn, kError };

struct Options {
  Level level = Level::kInfo;  // --log-level
  bool json = false;           // --log-format json
  std::string file;            // --log-file; empty = stderr
};

}  // namespace spindle::log
