#include "app/commands.h"

#include <cstdio>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "app/load_progress.h"
#include "app/model_loader.h"
#include "app/server_process.h"
#include "base/log.h"
#include "cli/chat.h"
#include "cli/inspect.h"
#include "cli/kv.h"
#include "cli/kv_sim.h"
#include "cli/model_options.h"
#include "config/environment.h"
#include "config/option_error.h"
#include "config/option_warnings.h"
#include "config/serve_options.h"
#include "platform/memory.h"

namespace spindle::app {
namespace {

void Warn(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    log::Warn("option", {{"warning", warning}});
  }
}

}  // namespace

ExitCode LoadExitCode(const absl::Status& status) {
  if (config::IsOptionError(status)) {
    return kExitUsage;
  }
  return absl::IsResourceExhausted(status) ? kExitMemory : kExitModel;
}

std::optional<int> ParseArguments(config::OptionTable& table,
                                  const std::string& command,
                                  const std::string& summary,
                                  const std::vector<std::string>& arguments,
                                  std::string* model) {
  std::vector<std::string> warnings;
  std::string positional;
  const absl::Status status =
      table.Parse(command, summary, arguments, config::SpindleVariables(), &positional, &warnings);
  if (absl::IsCancelled(status)) {
    return kExitOk;
  }
  if (!status.ok()) {
    return Fatal(kExitUsage, status);
  }
  if (!positional.empty()) {
    if (table.given_as_flag("model") && *model != positional) {
      return Fatal(kExitUsage,
                   "--model " + *model + " and MODEL " + positional + " are two different models");
    }
    *model = positional;
  }
  Warn(warnings);
  return std::nullopt;
}

std::optional<int> ParseModelArguments(config::OptionTable& table,
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
  return std::nullopt;
}

int Fatal(ExitCode code, std::string_view reason) {
  fmt::print(stderr, "fatal: {}\n", reason);
  return code;
}

int Fatal(ExitCode code, const absl::Status& status) {
  return Fatal(code, std::string(status.message()));
}

int ServeCommand(const std::vector<std::string>& arguments) {
  return ServeOver({}, arguments);
}

int ServeOver(const DiskEnvironment& disk, const std::vector<std::string>& arguments) {
  config::ServeOptions options;
  config::OptionTable table;
  config::AddServeOptions(table, options);
  if (const auto code = ParseArguments(table,
                                       "spindle serve",
                                       "Serves a model over HTTP and gRPC.",
                                       arguments,
                                       &options.load.model_path)) {
    return *code;
  }
  if (const absl::Status status = config::FinishServeOptions(&options); !status.ok()) {
    return Fatal(kExitUsage, status);
  }
  if (const auto kernels = cli::KernelsOf(options.load); !kernels.ok()) {
    return Fatal(kExitUsage, kernels.status());
  }
  if (const absl::Status status = log::Configure(options.log); !status.ok()) {
    return Fatal(kExitUsage, status);
  }
  Warn(config::LoadWarnings(table, options.load));
  platform::BoundAllocator();
  std::vector<config::EffectiveOption> effective = table.Effective();
  return ServerProcess(std::move(options), std::move(effective), disk).Run();
}

int ChatCommand(const std::vector<std::string>& arguments) {
  config::LoadOptions load;
  load.engine.max_num_seqs = 1;
  cli::ChatOptions chat;
  config::OptionTable table;
  config::AddLoadOptions(table, load);
  table.Text("prompt", "TEXT", &chat.prompt, "answer one prompt and end").aliases = {"-p"};
  table.Text("system", "TEXT", &chat.system, "system message");
  table
      .OptionalFloat("temperature",
                     &chat.temperature,
                     0.0F,
                     2.0F,
                     "temperature, 0 = greedy; default: the model's, or 0.7")
      .aliases = {"--temp"};
  table.OptionalFloat("top-p", &chat.top_p, 0.0F, 1.0F, "top-p; default: the model's, or 0.9");
  table.OptionalUint32("seed", &chat.seed, 0, UINT32_MAX, "seed").aliases = {"-s"};
  table.OptionalUint32("max-tokens", &chat.max_tokens, 1, 1U << 24, "tokens of an answer")
      .aliases = {"-n"};
  if (const auto code = ParseModelArguments(table,
                                            "spindle chat",
                                            "Talks to a model in the terminal.",
                                            arguments,
                                            &load.model_path)) {
    return *code;
  }
  if (const absl::Status status = config::CheckLoadOptions(load); !status.ok()) {
    return Fatal(kExitUsage, status);
  }
  log::SetLevel(log::Level::kWarn);
  Warn(config::LoadWarnings(table, load));
  metrics::Registry registry({});
  serving::ServingOptions serving;
  serving.served_names = {"chat"};
  serving::CompletionService service(serving, registry, SteadyClock());
  {
    LoadProgressBar bar("loading");
    absl::StatusOr<LoadResult> loaded =
        LoadModel(load, /*front_ends=*/nullptr, registry, SteadyClock(), [&bar](double fraction) {
          bar.Show(fraction);
        });
    if (!loaded.ok()) {
      return Fatal(LoadExitCode(loaded.status()), loaded.status());
    }
    // What the model says of itself wins. At temperature 1 small models ramble.
    if (!chat.temperature.has_value()) {
      chat.temperature = loaded->model.temperature.value_or(0.7F);
    }
    if (!chat.top_p.has_value()) {
      chat.top_p = loaded->model.top_p.value_or(0.9F);
    }
    service.SetModel(std::move(loaded->model));
  }
  const absl::Status status = cli::Chat(service, chat);
  service.Shutdown(SteadyClock().Now());
  return status.ok() ? kExitOk : Fatal(kExitRuntime, status);
}

int InspectCommand(const std::vector<std::string>& arguments) {
  cli::InspectOptions options;
  config::OptionTable table;
  config::AddLoadOptions(table, options.load);
  table.Switch("tensors", &options.tensors, "list every tensor");
  table.Switch("json", &options.json, "print JSON");
  if (const auto code =
          ParseModelArguments(table,
                              "spindle inspect",
                              "Shows what a model file holds and the memory it takes.",
                              arguments,
                              &options.load.model_path)) {
    return *code;
  }
  const absl::Status status = cli::Inspect(options);
  return status.ok() ? kExitOk : Fatal(LoadExitCode(status), status);
}

namespace {

constexpr std::string_view kKvUsage =
    "usage: spindle kv ls|stat|fsck|gc DIR, or spindle kv sim\n"
    "\n"
    "  ls DIR          list the stores of a folder of the disk tier\n"
    "  stat DIR        show what they hold\n"
    "  fsck DIR        read and verify every record\n"
    "  gc DIR          drop segments that hold little that is live\n"
    "  sim             compare replacement policies on a trace\n"
    "\n"
    "spindle kv ACTION --help lists the options of an action.\n";

int KvSimCommand(const std::vector<std::string>& arguments) {
  cli::KvSimOptions options;
  config::OptionTable table;
  cli::AddKvSimOptions(table, options);
  std::string trace;
  if (const auto code = ParseArguments(table,
                                       "spindle kv sim",
                                       "Compares replacement policies on a trace.",
                                       arguments,
                                       &trace)) {
    return *code;
  }
  if (!trace.empty() && !options.trace_path.empty()) {
    return Fatal(kExitUsage, "--trace " + options.trace_path + " and " + trace + " are two traces");
  }
  if (!trace.empty()) {
    options.trace_path = trace;
  }
  options.flags = table.flags();
  const absl::StatusOr<std::string> report = [&options] {
    LoadProgressBar bar("simulating");
    return cli::KvSim(options, [&bar](double fraction) { bar.Show(fraction); });
  }();
  if (!report.ok()) {
    return Fatal(absl::IsInvalidArgument(report.status()) ? kExitUsage : kExitRuntime,
                 report.status());
  }
  fmt::print("{}", *report);
  return kExitOk;
}

}  // namespace

int KvCommand(const std::vector<std::string>& arguments) {
  const std::string first = arguments.empty() ? "" : arguments.front();
  if (first == "sim") {
    return KvSimCommand({arguments.begin() + 1, arguments.end()});
  }
  if (first == "help" || first == "--help" || first == "-h") {
    fmt::print("{}", kKvUsage);
    return kExitOk;
  }
  using Action = cli::KvToolOptions::Action;
  static const std::map<std::string, std::pair<Action, std::string>> kActions = {
      {"ls", {Action::kList, "Lists the stores of a folder of the disk tier."}},
      {"stat", {Action::kStat, "Shows what the stores of a folder hold."}},
      {"fsck", {Action::kCheck, "Reads and verifies every record."}},
      {"gc", {Action::kCollect, "Drops segments that hold little that is live."}},
  };
  const auto found = kActions.find(first);
  if (found == kActions.end()) {
    return Fatal(kExitUsage, "usage: spindle kv ls|stat|fsck|gc DIR, or spindle kv sim");
  }
  cli::KvToolOptions options;
  options.action = found->second.first;
  config::OptionTable table;
  table.NamePositional("DIR", "the folder given to --kv-disk-path, or one store in it");
  table.Switch("json", &options.json, "print JSON, one line per store");
  if (options.action == Action::kCheck) {
    table.Switch("repair", &options.repair, "write a new index; no server may use the store");
  }
  if (options.action == Action::kCollect) {
    table.Bytes("target",
                &options.target_bytes,
                1,
                uint64_t{1} << 60,
                "drop the oldest until this many bytes are left");
  }
  if (const auto code = ParseArguments(table,
                                       "spindle kv " + found->first,
                                       found->second.second,
                                       {arguments.begin() + 1, arguments.end()},
                                       &options.directory)) {
    return *code;
  }
  if (options.directory.empty()) {
    return Fatal(kExitUsage, "DIR is required: the folder given to --kv-disk-path");
  }
  LoadProgressBar bar("checking");
  const absl::Status status = cli::KvTool(options, [&bar](double fraction) { bar.Show(fraction); });
  return status.ok() ? kExitOk : Fatal(kExitRuntime, status);
}

}  // namespace spindle::app
