// Settings that only one method has: of an algorithm, or of sparse prefill.
// Thread-safety: plain value and pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace spindle::sparse {

// min = max: fixed by the build, listed for those who read.
struct Knob {
  std::string_view name;
  double min;
  double max;
  double preset;
  bool is_integer = true;
};

using NamedValues = std::vector<std::pair<std::string, double>>;

// The values of `knobs`, in their order: presets, but for those that are named. `field`: what they
// are called; `owner`: whose they are. ERRORS, whose messages begin with field.name:
// kUnimplemented (no such knob), kInvalidArgument (out of range).
[[nodiscard]] absl::StatusOr<std::vector<double>> KnobValues(const NamedValues& named,
                                                             std::span<const Knob> knobs,
                                                             std::string_view field,
                                                             std::string_view owner);

}  // namespace spindle::sparse
