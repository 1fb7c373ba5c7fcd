// Early returns for absl::Status and StatusOr, and the check for our own bugs.
// Thread-safety: macros only.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Aborts with file, line and the failed condition. Only for our own bugs; never for input, I/O or
// capacity.
#define SPINDLE_CHECK(condition)                                             \
  do {                                                                       \
    if (!(condition)) [[unlikely]] {                                         \
      ::spindle::base_internal::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                                        \
  } while (false)

#ifdef NDEBUG
#define SPINDLE_DCHECK(condition) static_cast<void>(0)
#else
#define SPINDLE_DCHECK(condition) SPINDLE_CHECK(condition)
#endif

#define SPINDLE_RETURN_IF_ERROR(expr)                                 \
  do {                                                                \
    if (absl::Status spindle_status = (expr); !spindle_status.ok()) { \
      return spindle_status;                                          \
    }                                                                 \
  } while (false)

#define SPINDLE_CONCAT_INNER(a, b) a##b
#define SPINDLE_CONCAT(a, b) SPINDLE_CONCAT_INNER(a, b)

// SPINDLE_ASSIGN_OR_RETURN(auto x, Compute());
#define SPINDLE_ASSIGN_OR_RETURN(lhs, expr) \
  SPINDLE_ASSIGN_OR_RETURN_IMPL(SPINDLE_CONCAT(spindle_statusor_, __LINE__), lhs, expr)
#define SPINDLE_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) {                                    \
    return std::move(tmp).status();                   \
  }                                                   \
  lhs = std::move(tmp).value()

namespace spindle::base_internal {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace spindle::base_internal
