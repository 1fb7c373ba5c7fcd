#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "app/commands.h"
#include "app/load_progress.h"
#include "app/model_loader.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "cli/eval.h"
#include "formats/model_file.h"
#include "model/config_reader.h"
#include "sparse/algorithm_set.h"

namespace spindle::app {
namespace {

// A bar per stage.
class StageBars {
 public:
  void Show(const std::string& stage, double fraction) {
    if (stage != stage_) {
      bar_.reset();  // takes the old one away before the new one is drawn
      bar_.emplace(stage);
      stage_ = stage;
    }
    bar_->Show(fraction);
  }

 private:
  std::string stage_;
  std::optional<LoadProgressBar> bar_;
};

absl::StatusOr<cli::EvalOutcome> RunEval(
    const cli::EvalOptions& options,
    const std::shared_ptr<const formats::ModelFile>& file,  // shared with the model
    const text::Tokenizer& tokenizer,
    const sparse::AlgorithmSet& algorithms) {
  StageBars bars;
  return cli::Eval(
      options, file, tokenizer, algorithms, [&bars](const std::string& stage, double fraction) {
        bars.Show(stage, fraction);
      });
}

// As the server has them.
absl::StatusOr<sparse::AlgorithmSet> AlgorithmsOf(const config::LoadOptions& options,
                                                  const formats::ModelFile& file) {
  SPINDLE_ASSIGN_OR_RETURN(model::ModelConfig shape, model::ReadConfig(file));
  SPINDLE_RETURN_IF_ERROR(model::ApplyOptions(options.model, &shape));
  return LoadAlgorithms(options, file, shape);
}

}  // namespace

int EvalCommand(const std::vector<std::string>& arguments) {
  cli::EvalOptions options;
  config::OptionTable table;
  cli::AddEvalOptions(table, options);
  if (const auto code = ParseArguments(table,
                                       "spindle eval",
                                       "Measures what sparse attention changes.",
                                       arguments,
                                       &options.load.model_path)) {
    return *code;
  }
  if (options.load.model_path.empty()) {
    return Fatal(kExitUsage, "MODEL is required: a GGUF file, safetensors file or model folder");
  }
  log::SetLevel(log::Level::kWarn);
  absl::StatusOr<std::shared_ptr<const formats::ModelFile>> file =
      formats::ModelFile::Open(options.load.model_path);
  if (!file.ok()) {
    return Fatal(kExitModel, file.status());
  }
  const absl::StatusOr<std::unique_ptr<text::Tokenizer>> tokenizer =
      LoadTokenizer(**file, options.load.tokenizer_path);
  if (!tokenizer.ok()) {
    return Fatal(kExitModel, tokenizer.status());
  }
  const absl::StatusOr<sparse::AlgorithmSet> algorithms = AlgorithmsOf(options.load, **file);
  if (!algorithms.ok()) {
    return Fatal(kExitModel, algorithms.status());
  }
  const absl::StatusOr<cli::EvalOutcome> outcome =
      RunEval(options, *file, **tokenizer, *algorithms);
  if (!outcome.ok()) {
    const absl::Status& status = outcome.status();
    return Fatal(absl::IsInvalidArgument(status)     ? kExitUsage
                 : absl::IsResourceExhausted(status) ? kExitMemory
                                                     : kExitRuntime,
                 status);
  }
  fmt::print("{}", outcome->report);
  return outcome->passed() ? kExitOk : Fatal(kExitRuntime, "a quality gate failed");
}

}  // namespace spindle::app
