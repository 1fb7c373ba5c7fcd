// JSON as text when its strings come from outside. Thread-safety: pure function.
#pragma once

#include <string>

namespace spindle {

// nlohmann's dump() throws on strings that are not UTF-8 (file names, metadata of model files,
// arguments); here bad bytes become U+FFFD. `indent` below 0: one line.
template <typename Json>
[[nodiscard]] std::string DumpJson(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace spindle
