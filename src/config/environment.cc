#include "config/environment.h"

#include <string_view>

#include <unistd.h>

namespace spindle::config {

std::map<std::string, std::string> SpindleVariables() {
  static constexpr std::string_view kPrefix = "SPINDLE_";
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (text.substr(0, kPrefix.size()) == kPrefix && equals != std::string_view::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

}  // namespace spindle::config
