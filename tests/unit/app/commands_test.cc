// Exit codes and messages of arguments that never get as far as a model.
#include "app/commands.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace spindle::app {
namespace {

using ::testing::HasSubstr;
using Command = int (*)(const std::vector<std::string>&);

struct Outcome {
  int code;
  std::string out;
  std::string error;
};

Outcome RunCommand(Command command, const std::vector<std::string>& arguments) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = command(arguments);
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.error = ::testing::internal::GetCapturedStderr();
  return outcome;
}

// The last line on standard error.
std::string LastLine(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
}

void ExpectFatal(const Outcome& outcome, int code, const std::string& reason) {
  EXPECT_EQ(outcome.code, code) << outcome.error;
  EXPECT_EQ(LastLine(outcome.error).substr(0, 7), "fatal: ");
  EXPECT_THAT(LastLine(outcome.error), HasSubstr(reason));
}

TEST(Commands, HelpIsNoError) {
  for (const Command command : {&ServeCommand, &ChatCommand, &InspectCommand}) {
    const Outcome outcome = RunCommand(command, {"--help"});
    EXPECT_EQ(outcome.code, kExitOk);
    EXPECT_THAT(outcome.out, HasSubstr("--kv-host-bytes"));
    EXPECT_THAT(outcome.out, HasSubstr("MODEL"));
  }
}

TEST(Commands, HelpOfTheDiskToolsAsksForAFolder) {
  for (const char* action : {"ls", "stat", "fsck", "gc"}) {
    const Outcome outcome = RunCommand(&KvCommand, {action, "--help"});
    EXPECT_EQ(outcome.code, kExitOk);
    EXPECT_THAT(outcome.out, HasSubstr("DIR"));
    EXPECT_EQ(outcome.out.find("MODEL"), std::string::npos);
  }
}

TEST(Commands, HelpOfKvListsItsActions) {
  for (const char* flag : {"--help", "-h", "help"}) {
    const Outcome outcome = RunCommand(&KvCommand, {flag});
    EXPECT_EQ(outcome.code, kExitOk);
    EXPECT_THAT(outcome.out, HasSubstr("fsck DIR"));
    EXPECT_EQ(outcome.error, "");
  }
}

TEST(Commands, HelpIsSilentAboutSettingsOfOtherServers) {
  const std::string help = RunCommand(&ServeCommand, {"--help"}).out;
  EXPECT_THAT(help, HasSubstr("--max-connections"));
  EXPECT_EQ(help.find("tensor-parallel"), std::string::npos);
  EXPECT_EQ(help.find("mlock"), std::string::npos);
}

TEST(Commands, AModelOrFolderIsRequired) {
  ExpectFatal(RunCommand(&ServeCommand, {}), kExitUsage, "--model is required");
  ExpectFatal(RunCommand(&ChatCommand, {}), kExitUsage, "MODEL is required");
  ExpectFatal(RunCommand(&InspectCommand, {}), kExitUsage, "MODEL is required");
  ExpectFatal(RunCommand(&KvCommand, {"ls"}), kExitUsage, "DIR is required");
}

TEST(Commands, TheDiskToolsAreNamed) {
  ExpectFatal(RunCommand(&KvCommand, {}), kExitUsage, "ls|stat|fsck|gc");
  ExpectFatal(RunCommand(&KvCommand, {"defrag", "/x"}), kExitUsage, "ls|stat|fsck|gc");
  ExpectFatal(RunCommand(&KvCommand, {"ls", "--repair", "/x"}), kExitUsage, "--repair");
  ExpectFatal(RunCommand(&KvCommand, {"gc", "--target", "much", "/x"}), kExitUsage, "--target");
}

TEST(Commands, FlagsOfTheSimulatorThatWouldDoNothingAreRefused) {
  const test::TempFolder folder;
  const std::string requests = folder.Write(
      "requests",
      R"({"timestamp": 0, "input_length": 900, "output_length": 1, "hash_ids": [1, 2]})"
      "\n");
  const std::string file = folder.path() + "/file";

  struct Row {
    std::vector<std::string> arguments;
    const char* reason;
  };

  for (const Row& row :
       {Row{{"--serve", "2", "--serve-time", "1s", "--plot", file}, "--plot has no effect"},
        Row{{"--serve", "2", "--serve-time", "1s", "--save-trace", file}, "--save-trace has no"},
        Row{{"--serve", "2", "--serve-time", "1s", "--capacity", "4"}, "--capacity has no effect"},
        Row{{"--synthetic", "cyclic", "--link-gbps", "1"}, "it is for --serve"},
        Row{{"--synthetic", "cyclic", "--no-async-copies"}, "--async-copies has no effect"},
        Row{{"--synthetic", "cyclic", "--seeds", "2"}, "--seeds has no effect"},
        Row{{"--synthetic", "scan", "--pages", "64"}, "--pages has no effect"},
        Row{{requests, "--seeds", "2"}, "--seeds has no effect"},
        Row{{requests, "--ratio", "2"}, "--ratio has no effect"},
        Row{{requests, "--save-trace", file}, "--save-trace has no effect"}}) {
    std::vector<std::string> arguments = row.arguments;
    arguments.insert(arguments.begin(), "sim");
    ExpectFatal(RunCommand(&KvCommand, arguments), kExitUsage, row.reason);
  }
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_EQ(RunCommand(&KvCommand, {"sim", requests, "--capacity", "4", "--json"}).code, kExitOk);
}

TEST(Commands, SizesOfTheSimulatedServerHaveARange) {
  const std::vector<std::string> serve = {"sim", "--serve", "2", "--serve-time", "1s"};
  for (const char* flag : {"--kv-fast-bytes", "--kv-host-bytes"}) {
    std::vector<std::string> arguments = serve;
    arguments.insert(arguments.end(), {flag, "1"});
    const Outcome outcome = RunCommand(&KvCommand, arguments);
    ExpectFatal(outcome, kExitUsage, std::string(flag) + " must be a size such as");
    // The smallest that is named is taken, by the simulator too.
    const std::string line = LastLine(outcome.error);
    const size_t begin = line.find(" in ") + 4;
    arguments.back() = line.substr(begin, line.find("..") - begin);
    const Outcome least = RunCommand(&KvCommand, arguments);
    EXPECT_EQ(least.code, kExitOk) << arguments.back() << ' ' << least.error;
  }
  ExpectFatal(RunCommand(&KvCommand, {"sim", "--serve", "2", "--serve-time", "0"}),
              kExitUsage,
              "--serve-time");
  ExpectFatal(RunCommand(&KvCommand, {"sim", "--serve", "2", "--link-gbps", "0.0001"}),
              kExitUsage,
              "--link-gbps must be a number in 0.001..10000");
}

TEST(Commands, AFolderWithoutAStoreIsARuntimeError) {
  const test::TempFolder folder;
  ExpectFatal(RunCommand(&KvCommand, {"ls", folder.path()}), kExitRuntime, "no store");
}

TEST(Commands, TwoModelsContradictEachOther) {
  ExpectFatal(
      RunCommand(&ServeCommand, {"a.gguf", "-m", "b.gguf"}), kExitUsage, "two different models");
}

TEST(Commands, UnknownArgumentsAreUsageErrors) {
  ExpectFatal(
      RunCommand(&ServeCommand, {"a.gguf", "--max-num-seq", "3"}), kExitUsage, "--max-num-seqs");
  ExpectFatal(RunCommand(&ServeCommand, {"a.gguf", "--isa", "mmx"}), kExitUsage, "--isa mmx");
  ExpectFatal(RunCommand(&ChatCommand, {"a.gguf", "--temp", "3"}), kExitUsage, "--temperature");
}

TEST(Commands, OptionsThatContradictEachOtherNeedNoModel) {
  for (const Command command : {&ServeCommand, &ChatCommand}) {
    ExpectFatal(
        RunCommand(command, {"a.gguf", "--kv-disk-path", "/x", "--no-enable-prefix-caching"}),
        kExitUsage,
        "--kv-disk-path needs --enable-prefix-caching");
  }
}

TEST(Commands, FilesThatAreNoModels) {
  const test::TempFolder folder;
  const std::string path = folder.Write("broken.gguf", "GGUF but no more");
  ExpectFatal(RunCommand(&InspectCommand, {path}), kExitModel, "broken.gguf");
  ExpectFatal(
      RunCommand(&InspectCommand, {folder.path() + "/absent.gguf"}), kExitModel, "absent.gguf");
  ExpectFatal(RunCommand(&ChatCommand, {path, "-p", "hi"}), kExitModel, "broken.gguf");
}

}  // namespace
}  // namespace spindle::app
