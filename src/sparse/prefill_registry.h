// The methods of sparse prefill, by name. Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "sparse/prefill_method.h"

namespace spindle::sparse {

// Shared with the policies of requests. Dense prefill is none of them.
[[nodiscard]] std::span<const std::shared_ptr<const PrefillMethod>> PrefillMethods();

// Null when none has this name.
[[nodiscard]] std::shared_ptr<const PrefillMethod> FindPrefillMethod(std::string_view name);

}  // namespace spindle::sparse
