#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "app/commands.h"
#include "app/measured_inputs.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "cli/calibrate.h"
#include "cli/eval.h"

namespace spindle::app {
namespace {

// Measures the model of the options, a bar for each stage, and prints what that says.
int Measure(const config::LoadOptions& options,
            const std::function<absl::StatusOr<std::string>(
                const cli::MeasuredModel&, const cli::MeasureProgress&)>& measure) {
  log::SetLevel(log::Level::kWarn);
  const absl::StatusOr<MeasuredInputs> inputs = OpenMeasured(options);
  if (!inputs.ok()) {
    return Fatal(LoadExitCode(inputs.status()), inputs.status());
  }
  absl::StatusOr<std::string> report;
  {
    StageBars bars;  // gone before anything is printed
    report = measure(inputs->View(), [&bars](const std::string& stage, double fraction) {
      bars.Show(stage, fraction);
    });
  }
  if (!report.ok()) {
    return Fatal(ExitCodeOf(report.status()), report.status());
  }
  fmt::print("{}", *report);
  return kExitOk;
}

}  // namespace

int EvalCommand(const std::vector<std::string>& arguments) {
  cli::EvalOptions options;
  config::OptionTable table;
  cli::AddEvalOptions(table, options);
  if (const auto code = ParseModelArguments(table,
                                            "spindle eval",
                                            "Measures what sparse attention changes.",
                                            arguments,
                                            &options.load.model_path)) {
    return *code;
  }
  bool passed = true;
  const int code = Measure(
      options.load,
      [&](const cli::MeasuredModel& model,
          const cli::MeasureProgress& progress) -> absl::StatusOr<std::string> {
        SPINDLE_ASSIGN_OR_RETURN(cli::EvalOutcome outcome, cli::Eval(options, model, progress));
        passed = outcome.passed();
        return std::move(outcome.report);
      });
  return passed ? code : Fatal(kExitRuntime, "a quality gate failed");
}

int CalibrateCommand(const std::vector<std::string>& arguments) {
  cli::CalibrateOptions options;
  config::OptionTable table;
  cli::AddCalibrateOptions(table, options);
  if (const auto code =
          ParseModelArguments(table,
                              "spindle calibrate",
                              "Measures from which context on sparse attention is quicker.",
                              arguments,
                              &options.load.model_path)) {
    return *code;
  }
  return Measure(options.load,
                 [&](const cli::MeasuredModel& model, const cli::MeasureProgress& progress) {
                   return cli::Calibrate(options, model, progress);
                 });
}

}  // namespace spindle::app
