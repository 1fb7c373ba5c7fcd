#include <string>
#include <vector>

#include <fmt/format.h>

#include "app/commands.h"
#include "app/measured_inputs.h"
#include "base/log.h"
#include "cli/calibrate.h"
#include "cli/eval.h"

namespace spindle::app {
namespace {

// Parses the arguments of a command that measures a model, and says what goes wrong.
std::optional<int> ParseMeasuring(config::OptionTable& table,
                                  const std::string& command,
                                  const std::string& summary,
                                  const std::vector<std::string>& arguments,
                                  std::string* model) {
  if (const auto code = ParseArguments(table, command, summary, arguments, model)) {
    return code;
  }
  if (model->empty()) {
    return Fatal(kExitUsage, "MODEL is required: a GGUF file, safetensors file or model folder");
  }
  log::SetLevel(log::Level::kWarn);
  return std::nullopt;
}

}  // namespace

int EvalCommand(const std::vector<std::string>& arguments) {
  cli::EvalOptions options;
  config::OptionTable table;
  cli::AddEvalOptions(table, options);
  if (const auto code = ParseMeasuring(table,
                                       "spindle eval",
                                       "Measures what sparse attention changes.",
                                       arguments,
                                       &options.load.model_path)) {
    return *code;
  }
  const absl::StatusOr<MeasuredInputs> inputs = OpenMeasured(options.load);
  if (!inputs.ok()) {
    return Fatal(LoadExitCode(inputs.status()), inputs.status());
  }
  const auto evaluate = [&] {
    StageBars bars;  // gone before anything is printed
    return cli::Eval(options, inputs->View(), [&bars](const std::string& stage, double fraction) {
      bars.Show(stage, fraction);
    });
  };
  const absl::StatusOr<cli::EvalOutcome> outcome = evaluate();
  if (!outcome.ok()) {
    return Fatal(ExitCodeOf(outcome.status()), outcome.status());
  }
  fmt::print("{}", outcome->report);
  return outcome->passed() ? kExitOk : Fatal(kExitRuntime, "a quality gate failed");
}

int CalibrateCommand(const std::vector<std::string>& arguments) {
  cli::CalibrateOptions options;
  config::OptionTable table;
  cli::AddCalibrateOptions(table, options);
  if (const auto code =
          ParseMeasuring(table,
                         "spindle calibrate",
                         "Measures from which context on sparse attention is quicker.",
                         arguments,
                         &options.load.model_path)) {
    return *code;
  }
  const absl::StatusOr<MeasuredInputs> inputs = OpenMeasured(options.load);
  if (!inputs.ok()) {
    return Fatal(LoadExitCode(inputs.status()), inputs.status());
  }
  const auto calibrate = [&] {
    StageBars bars;  // gone before anything is printed
    return cli::Calibrate(
        options, inputs->View(), [&bars](const std::string& stage, double fraction) {
          bars.Show(stage, fraction);
        });
  };
  const absl::StatusOr<std::string> preset = calibrate();
  if (!preset.ok()) {
    return Fatal(ExitCodeOf(preset.status()), preset.status());
  }
  fmt::print("{}", *preset);
  return kExitOk;
}

}  // namespace spindle::app
