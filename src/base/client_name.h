// Names that clients choose for what they later ask for in a URL's path: sessions, requests.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <string_view>

namespace spindle {

inline constexpr size_t kMaxClientNameBytes = 128;

// [A-Za-z0-9._:-]{1,128}, but neither "." nor "..": clients take such segments out of a path before
// they send it.
[[nodiscard]] bool IsClientName(std::string_view name);

}  // namespace spindle
