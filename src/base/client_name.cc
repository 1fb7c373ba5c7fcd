#include "base/client_name.h"

#include <algorithm>

namespace spindle {

bool IsClientName(std::string_view name) {
  const bool well_formed = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           std::string_view("._:-").find(c) != std::string_view::npos;
  });
  return well_formed && !name.empty() && name.size() <= kMaxClientNameBytes && name != "." &&
         name != "..";
}

}  // namespace spindle
