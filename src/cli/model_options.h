// What options make of a model file and of this machine, for every command that takes a model.
// Thread-safety: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "config/load_options.h"
#include "formats/model_file.h"
#include "kernels/registry.h"
#include "model/model_config.h"

namespace spindle::cli {

// --isa. ERRORS: config::OptionError.
[[nodiscard]] absl::StatusOr<const kernels::KernelTable*> KernelsOf(
    const config::LoadOptions& options);

// The model's shape under the options. ERRORS: those of model::ReadConfig; config::OptionError.
[[nodiscard]] absl::StatusOr<model::ModelConfig> ShapeOf(const config::LoadOptions& options,
                                                         const formats::ModelFile& file);

}  // namespace spindle::cli
