#include "app/measured_inputs.h"

#include <utility>

#include "app/model_loader.h"
#include "base/status_macros.h"
#include "cli/model_options.h"

namespace spindle::app {

absl::StatusOr<MeasuredInputs> OpenMeasured(const config::LoadOptions& options) {
  MeasuredInputs inputs;
  SPINDLE_ASSIGN_OR_RETURN(inputs.file, formats::ModelFile::Open(options.model_path));
  SPINDLE_ASSIGN_OR_RETURN(inputs.tokenizer, LoadTokenizer(*inputs.file, options.tokenizer_path));
  SPINDLE_ASSIGN_OR_RETURN(const model::ModelConfig shape, cli::ShapeOf(options, *inputs.file));
  SPINDLE_ASSIGN_OR_RETURN(inputs.algorithms, LoadAlgorithms(options, *inputs.file, shape));
  return inputs;
}

ExitCode ExitCodeOf(const absl::Status& status) {
  const bool is_usage = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
                        absl::IsUnimplemented(status) || absl::IsNotFound(status);
  return is_usage ? kExitUsage : absl::IsResourceExhausted(status) ? kExitMemory : kExitRuntime;
}

void StageBars::Show(const std::string& stage, double fraction) {
  if (stage != stage_) {
    bar_.reset();  // takes the old one away before the new one is drawn
    bar_.emplace(stage);
    stage_ = stage;
  }
  bar_->Show(fraction);
}

}  // namespace spindle::app
