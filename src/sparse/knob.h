// A setting that only one method has: of an algorithm, or of sparse prefill.
// Thread-safety: plain value.
#pragma once

#include <string_view>

namespace spindle::sparse {

// min = max: fixed by the build, listed for those who read.
struct Knob {
  std::string_view name;
  double min;
  double max;
  double preset;
  bool is_integer = true;
};

}  // namespace spindle::sparse
