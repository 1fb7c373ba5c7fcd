// `spindle inspect`: what a model file holds and how much memory serving it takes.
// Thread-safety: call from one thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "config/load_options.h"

namespace spindle::cli {

struct InspectOptions {
  config::LoadOptions load;
  bool tensors = false;  // list every tensor
  bool json = false;
};

// Prints to standard output. ERRORS: those of ModelFile::Open and the model configuration.
absl::Status Inspect(const InspectOptions& options);

}  // namespace spindle::cli
