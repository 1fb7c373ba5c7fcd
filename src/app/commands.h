// The commands of the binary. Each parses its own arguments and returns the process's exit code
// (docs/configuration.md). Thread-safety: call from the main thread, once.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "app/model_loader.h"
#include "config/option_table.h"

namespace spindle::app {

enum ExitCode : int {
  kExitOk = 0,
  kExitRuntime = 1,
  kExitUsage = 2,
  kExitModel = 3,
  kExitListen = 4,
  kExitMemory = 5,
};

int ServeCommand(const std::vector<std::string>& arguments);
int ChatCommand(const std::vector<std::string>& arguments);
int EvalCommand(const std::vector<std::string>& arguments);
int CalibrateCommand(const std::vector<std::string>& arguments);
int InspectCommand(const std::vector<std::string>& arguments);
int KvCommand(const std::vector<std::string>& arguments);

// ServeCommand with the disk tier over something else, for tests.
int ServeOver(const DiskEnvironment& disk, const std::vector<std::string>& arguments);

// Parses the arguments of a command and prints what goes wrong; nullopt = go on. `model` receives
// the argument that is no option.
std::optional<int> ParseArguments(config::OptionTable& table,
                                  const std::string& command,
                                  const std::string& summary,
                                  const std::vector<std::string>& arguments,
                                  std::string* model);

// The same where that argument is a model, which is then required.
std::optional<int> ParseModelArguments(config::OptionTable& table,
                                       const std::string& command,
                                       const std::string& summary,
                                       const std::vector<std::string>& arguments,
                                       std::string* model);

// Of a model that could not be loaded: an option, memory, or the model.
ExitCode LoadExitCode(const absl::Status& status);

// Prints "fatal: <reason>" as the last line of standard error and returns `code`.
int Fatal(ExitCode code, std::string_view reason);
int Fatal(ExitCode code, const absl::Status& status);

}  // namespace spindle::app
