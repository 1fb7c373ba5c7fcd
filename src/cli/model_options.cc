#include "cli/model_options.h"

#include <utility>

#include "base/status_macros.h"
#include "config/option_error.h"
#include "model/config_reader.h"

namespace spindle::cli {

absl::StatusOr<const kernels::KernelTable*> KernelsOf(const config::LoadOptions& options) {
  const kernels::KernelTable* const kernels = kernels::FindKernelsByName(options.isa);
  if (kernels == nullptr) {
    return config::OptionError(absl::InvalidArgumentError(
        "--isa " + options.isa + " is unknown or not supported by this CPU"));
  }
  return kernels;
}

absl::StatusOr<model::ModelConfig> ShapeOf(const config::LoadOptions& options,
                                           const formats::ModelFile& file) {
  SPINDLE_ASSIGN_OR_RETURN(model::ModelConfig shape, model::ReadConfig(file));
  if (absl::Status status = model::ApplyOptions(options.model, &shape); !status.ok()) {
    return config::OptionError(std::move(status));
  }
  return shape;
}

}  // namespace spindle::cli
