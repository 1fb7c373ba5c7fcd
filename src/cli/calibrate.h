// `spindle calibrate`: from which context on an algorithm's steps are quicker than dense ones on
// this machine, as a preset to serve with. Thread-safety: call from one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/eval_inputs.h"
#include "config/load_options.h"
#include "config/option_table.h"

namespace spindle::cli {

struct CalibrateOptions {
  config::LoadOptions load;        // with the algorithm and its settings
  std::vector<std::string> texts;  // files, or kStories; none: the same
  std::string contexts;            // with commas; empty: some up to the model's length
  uint32_t batch = 1;              // sequences that decode together
  uint32_t num_steps = 32;         // timed, of each round
  uint32_t num_rounds = 5;
  std::string output;  // file of the preset; empty: none
};

// Borrows the options.
void AddCalibrateOptions(config::OptionTable& table, CalibrateOptions& options);

// The preset, with the times as comments; writes it to the output, too. Where the algorithm is
// never quicker the preset says dense.
// ERRORS: kInvalidArgument naming the option and its range; kFailedPrecondition (settings that the
// algorithm does not have); kResourceExhausted (memory of KV or indexes); those of the model, texts
// and files.
[[nodiscard]] absl::StatusOr<std::string> Calibrate(const CalibrateOptions& options,
                                                    const MeasuredModel& measured,
                                                    const MeasureProgress& progress);

}  // namespace spindle::cli
