#include "config/option_error.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "base/status_macros.h"

namespace spindle::config {
namespace {

constexpr const char* kMark = "spindle/option";

}  // namespace

absl::Status OptionError(absl::Status status) {
  SPINDLE_CHECK(!status.ok());
  status.SetPayload(kMark, absl::Cord());
  return status;
}

absl::Status OptionError(std::string_view option, const absl::Status& status) {
  return OptionError(
      absl::Status(status.code(), std::string(option) + ": " + std::string(status.message())));
}

bool IsOptionError(const absl::Status& status) {
  return status.GetPayload(kMark).has_value();
}

}  // namespace spindle::config
