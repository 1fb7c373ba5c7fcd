// Entry point of the binary: picks the command.
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "app/build_facts.h"
#include "app/commands.h"
#include "kernels/registry.h"

namespace {

constexpr std::string_view kUsage =
    "Spindle serves large language models with long contexts.\n"
    "\n"
    "usage: spindle COMMAND [options]\n"
    "\n"
    "  serve MODEL     serve over HTTP (OpenAI-compatible) and gRPC\n"
    "  chat MODEL      talk to a model in the terminal (alias: run)\n"
    "  eval MODEL      measure what sparse attention changes\n"
    "  calibrate MODEL measure from which context on sparse attention is quicker\n"
    "  inspect MODEL   show what a model file holds and the memory it takes\n"
    "  kv ls|stat|fsck|gc DIR\n"
    "                  look at, check or clean up the folder of the disk tier\n"
    "  kv sim          compare replacement policies on a trace\n"
    "  version         print version, build and instruction set\n"
    "\n"
    "spindle COMMAND --help lists the options of a command.\n";

int PrintVersion() {
  fmt::print("spindle {} (commit {}, {}, isa {})\n",
             spindle::app::kVersion,
             spindle::app::kCommit,
             spindle::app::kBuild,
             spindle::kernels::BestKernels()->name);
  return spindle::app::kExitOk;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    std::fputs(kUsage.data(), stderr);
    return spindle::app::Fatal(spindle::app::kExitUsage, "a command is required");
  }
  const std::string& command = arguments.front();
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (command == "serve") {
    return spindle::app::ServeCommand(rest);
  }
  if (command == "chat" || command == "run") {
    return spindle::app::ChatCommand(rest);
  }
  if (command == "eval") {
    return spindle::app::EvalCommand(rest);
  }
  if (command == "calibrate") {
    return spindle::app::CalibrateCommand(rest);
  }
  if (command == "inspect") {
    return spindle::app::InspectCommand(rest);
  }
  if (command == "kv") {
    return spindle::app::KvCommand(rest);
  }
  if (command == "version" || command == "--version") {
    return PrintVersion();
  }
  if (command == "help" || command == "--help" || command == "-h") {
    std::fputs(kUsage.data(), stdout);
    return spindle::app::kExitOk;
  }
  std::fputs(kUsage.data(), stderr);
  return spindle::app::Fatal(spindle::app::kExitUsage, "unknown command '" + command + "'");
}
