#include "sparse/knob.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace spindle::sparse {

absl::StatusOr<std::vector<double>> KnobValues(const NamedValues& named,
                                               std::span<const Knob> knobs,
                                               std::string_view field,
                                               std::string_view owner) {
  std::vector<double> values;
  for (const Knob& knob : knobs) {
    values.push_back(knob.preset);
  }
  for (const auto& [name, value] : named) {
    const std::string path = std::string(field) + "." + name;
    const auto knob = std::ranges::find(knobs, name, &Knob::name);
    if (knob == knobs.end()) {
      return absl::UnimplementedError(path + " is not known to '" + std::string(owner) + "'");
    }
    if (!(value >= knob->min && value <= knob->max) ||
        (knob->is_integer && value != std::floor(value))) {
      return absl::InvalidArgumentError(absl::StrCat(path,
                                                     " must be a",
                                                     knob->is_integer ? " whole" : "",
                                                     " number in [",
                                                     knob->min,
                                                     ", ",
                                                     knob->max,
                                                     "], got ",
                                                     value));
    }
    values[static_cast<size_t>(knob - knobs.begin())] = value;
  }
  return values;
}

}  // namespace spindle::sparse
