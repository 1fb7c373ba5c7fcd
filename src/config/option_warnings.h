// Options that are taken and change nothing beside the others, or that spoil what is served.
// Thread-safety: pure function.
#pragma once

#include <string>
#include <vector>

#include "config/load_options.h"
#include "config/option_table.h"

namespace spindle::config {

// A line for each that was given in `table`, which wrote `options`.
[[nodiscard]] std::vector<std::string> LoadWarnings(const OptionTable& table,
                                                    const LoadOptions& options);

}  // namespace spindle::config
