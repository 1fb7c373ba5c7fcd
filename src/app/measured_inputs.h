// What `spindle eval` and `spindle calibrate` have in common: a model's file, tokenizer and
// algorithms without an engine, a bar per stage, exit codes. Thread-safety: call from one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "app/commands.h"
#include "app/load_progress.h"
#include "cli/eval_inputs.h"
#include "config/load_options.h"
#include "formats/model_file.h"
#include "sparse/algorithm_set.h"
#include "text/tokenizer.h"

namespace spindle::app {

struct MeasuredInputs {
  std::shared_ptr<const formats::ModelFile> file;  // shared with the model
  std::unique_ptr<text::Tokenizer> tokenizer;
  sparse::AlgorithmSet algorithms;  // as the server has them

  [[nodiscard]] cli::MeasuredModel View() const {
    return {.file = file, .tokenizer = *tokenizer, .algorithms = algorithms};
  }
};

// ERRORS: those of the parts; exit code kExitModel.
[[nodiscard]] absl::StatusOr<MeasuredInputs> OpenMeasured(const config::LoadOptions& options);

// Of what went wrong while a model was measured.
[[nodiscard]] ExitCode ExitCodeOf(const absl::Status& status);

class StageBars {
 public:
  void Show(const std::string& stage, double fraction);

 private:
  std::string stage_;
  std::optional<LoadProgressBar> bar_;
};

}  // namespace spindle::app
