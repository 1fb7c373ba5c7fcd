// Exit codes and messages of arguments that never get as far as a model.
#include "app/commands.h"

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
