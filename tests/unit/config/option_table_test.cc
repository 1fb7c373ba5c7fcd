#include "config/option_table.h"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spindle::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OptionTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    table_.Text("config", "FILE", &config_, "YAML file");
    table_.Uint32("max-num-seqs", &seqs_, 1, 64, "sequences").aliases = {"--parallel", "-np"};
    table_.Switch("metrics", &metrics_, "serve metrics");
    table_.TextList("served-model-name", "NAME", &names_, "names").aliases = {"-a"};
    table_.TextList("api-key", "KEY", &keys_, "key").secret = true;
    table_.Ignore("--flash-attn", "-fa", false);
    table_.Ignore("--n-gpu-layers", "-ngl", true);
  }

  absl::Status Parse(const std::vector<std::string>& arguments) {
    return table_.Parse("test", "A test.", arguments, environment_, &positional_, &warnings_);
  }

  std::string WriteFile(const std::string& text) {
    const std::string path = ::testing::TempDir() + "option_table_test.yaml";
    std::ofstream(path) << text;
    return path;
  }

  // Null when there is none. Valid until the next call.
  const EffectiveOption* Find(const std::string& name) {
    effective_ = table_.Effective();
    const auto found = std::ranges::find(effective_, name, &EffectiveOption::name);
    return found == effective_.end() ? nullptr : &*found;
  }

  OptionTable table_;
  std::vector<EffectiveOption> effective_;
  std::map<std::string, std::string> environment_;
  std::vector<std::string> warnings_;
  std::string positional_;
  std::string config_;
  uint32_t seqs_ = 16;
  bool metrics_ = true;
  std::vector<std::string> names_;
  std::vector<std::string> keys_;
};

TEST_F(OptionTableTest, FlagsWinOverEnvironmentOverFile) {
  const std::string path = WriteFile("max_num_seqs: 2\nmetrics: off\nserved_model_name: [a, b]\n");
  environment_ = {{"SPINDLE_MAX_NUM_SEQS", "3"}};
  ASSERT_TRUE(Parse({"--config", path}).ok());
  EXPECT_EQ(seqs_, 3U);
  EXPECT_FALSE(metrics_);
  EXPECT_THAT(names_, ElementsAre("a", "b"));
  ASSERT_TRUE(Parse({"--config", path, "--max-num-seqs", "4", "--metrics"}).ok());
  EXPECT_EQ(seqs_, 4U);
  EXPECT_TRUE(metrics_);
}

TEST_F(OptionTableTest, SwitchesTakeAValue) {
  ASSERT_TRUE(Parse({"--metrics=false"}).ok());
  EXPECT_FALSE(metrics_);
  ASSERT_TRUE(Parse({"--no-metrics=false"}).ok());
  EXPECT_TRUE(metrics_);
  ASSERT_TRUE(Parse({"--no-metrics"}).ok());
  ASSERT_TRUE(Parse({"--metrics=true"}).ok());
  EXPECT_TRUE(metrics_);
  EXPECT_FALSE(Parse({"--metrics=perhaps"}).ok());
}

TEST_F(OptionTableTest, AcceptsOtherSpellingsAndPositional) {
  ASSERT_TRUE(Parse({"-np", "5", "-a", "x", "-a", "y", "model.gguf", "-fa", "-ngl", "99"}).ok());
  EXPECT_EQ(seqs_, 5U);
  EXPECT_THAT(names_, ElementsAre("x", "y"));
  EXPECT_EQ(positional_, "model.gguf");
  EXPECT_EQ(warnings_.size(), 2U);
  ASSERT_TRUE(Parse({"--parallel=6", "--no-metrics"}).ok());
  EXPECT_EQ(seqs_, 6U);
  EXPECT_FALSE(metrics_);
}

TEST_F(OptionTableTest, UnknownNamesGetASuggestion) {
  EXPECT_THAT(std::string(Parse({"--max-num-seq", "4"}).message()),
              HasSubstr("did you mean '--max-num-seqs'?"));
  const std::string path = WriteFile("max_num_sseqs: 2\n");
  const std::string message(Parse({"--config", path}).message());
  EXPECT_THAT(message, HasSubstr("unknown key 'max_num_sseqs'; did you mean 'max-num-seqs'?"));
}

TEST_F(OptionTableTest, OutOfRangeNamesOptionAndRange) {
  EXPECT_THAT(std::string(Parse({"--max-num-seqs", "0"}).message()),
              HasSubstr("--max-num-seqs must be an integer in 1..64, got '0'"));
}

TEST_F(OptionTableTest, ABrokenFileIsRefused) {
  EXPECT_FALSE(Parse({"--config", WriteFile("- a\n- b\n")}).ok());
  EXPECT_FALSE(Parse({"--config", WriteFile("a: [")}).ok());
  EXPECT_FALSE(Parse({"--config", "/nonexistent.yaml"}).ok());
  EXPECT_FALSE(Parse({"--config", WriteFile("max_num_seqs: [1, 2]\n")}).ok());
}

TEST_F(OptionTableTest, StrangeVariablesAreWarnedAbout) {
  environment_ = {{"SPINDLE_MAX_NUM_SEQS", "tcp://10.0.0.1:80"},
                  {"SPINDLE_SERVICE_HOST", "10.0.0.1"}};
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(warnings_.size(), 2U);
  EXPECT_EQ(seqs_, 16U);
}

TEST_F(OptionTableTest, RefusesWhatAFileCannotSay) {
  EXPECT_FALSE(Parse({"--config", WriteFile("config: other.yaml\n")}).ok());
  EXPECT_FALSE(Parse({"--config", WriteFile("max_num_seqs: 1\nmax_num_seqs: 2\n")}).ok());
  EXPECT_FALSE(Parse({"--config", WriteFile("max_num_seqs: 1\nparallel: 2\n")}).ok());
  EXPECT_FALSE(Parse({"--config", ::testing::TempDir()}).ok());
}

TEST_F(OptionTableTest, SaysWhatWasAFlag) {
  environment_ = {{"SPINDLE_METRICS", "off"}};
  ASSERT_TRUE(Parse({"--parallel", "2"}).ok());
  EXPECT_TRUE(table_.given_as_flag("max-num-seqs"));
  EXPECT_FALSE(table_.given_as_flag("metrics"));
}

TEST_F(OptionTableTest, ARefusalNamesTheSource) {
  const std::string path = WriteFile("max_num_seqs: 0\n");
  EXPECT_THAT(std::string(Parse({"--config", path}).message()), HasSubstr("(from " + path + ")"));
  environment_ = {{"SPINDLE_MAX_NUM_SEQS", "0"}};
  EXPECT_THAT(std::string(Parse({}).message()), HasSubstr("(from SPINDLE_MAX_NUM_SEQS)"));
  EXPECT_EQ(std::string(Parse({"-np", "0"}).message()).find("(from"), std::string::npos);
}

TEST_F(OptionTableTest, SecretsAreMasked) {
  ASSERT_TRUE(Parse({"--api-key", "hush"}).ok());
  const EffectiveOption* key = Find("api-key");
  EXPECT_EQ(key->given, "********");
  EXPECT_EQ(key->value, OptionValue("********"));
  EXPECT_THAT(keys_, ElementsAre("hush"));
}

TEST_F(OptionTableTest, EffectiveSaysWhatWasGivenWhereAndWhatItIs) {
  environment_ = {{"SPINDLE_METRICS", "off"}};
  const std::string path = WriteFile("served_model_name: [a, b]\n");
  ASSERT_TRUE(Parse({"--config", path, "-np", "4"}).ok());
  EXPECT_EQ(Find("max-num-seqs")->given, "4");
  EXPECT_EQ(Find("max-num-seqs")->source, "flag");
  EXPECT_EQ(Find("max-num-seqs")->value, OptionValue(uint64_t{4}));
  EXPECT_EQ(Find("metrics")->source, "environment");
  EXPECT_EQ(Find("metrics")->value, OptionValue(false));
  EXPECT_EQ(Find("served-model-name")->given, "a,b");
  EXPECT_EQ(Find("served-model-name")->source, "file");
  EXPECT_EQ(Find("served-model-name")->value, OptionValue(std::vector<std::string>{"a", "b"}));
  seqs_ = 9;  // a field that is changed later shows as it is
  EXPECT_EQ(Find("max-num-seqs")->value, OptionValue(uint64_t{9}));
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(Find("max-num-seqs")->given, std::nullopt);
  EXPECT_EQ(Find("max-num-seqs")->source, "default");
}

TEST_F(OptionTableTest, ThePositionalArgumentStandsForAnOption) {
  std::string model;
  table_.Text("model", "PATH", &model, "a model");
  ASSERT_TRUE(Parse({"m.gguf"}).ok());
  model = positional_;
  EXPECT_EQ(Find("model")->given, "m.gguf");
  EXPECT_EQ(Find("model")->source, "argument");
  EXPECT_EQ(Find("model")->value, OptionValue("m.gguf"));
}

TEST_F(OptionTableTest, SettingsOfOtherServersAreTakenWhenTheyChangeNothing) {
  table_.Fixed("tensor-parallel-size", "N", {"1"}, "one process").aliases = {"-tp"};
  table_.Fixed("mmap", "", {"true"}, "always mapped");
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--tensor-parallel-size", "1"},
                                             {"-tp", "1"},
                                             {"--mmap"},
                                             {"--mmap=on"},
                                             {"--no-mmap=false"}}) {
    EXPECT_TRUE(Parse(arguments).ok()) << arguments.front();
  }
  EXPECT_THAT(std::string(Parse({"-tp", "2"}).message()),
              HasSubstr("--tensor-parallel-size '2' is not offered: one process"));
  EXPECT_THAT(std::string(Parse({"--no-mmap"}).message()), HasSubstr("always mapped"));
  EXPECT_FALSE(Parse({"--mmap=0"}).ok());
  environment_ = {{"SPINDLE_TENSOR_PARALLEL_SIZE", "2"}};
  EXPECT_FALSE(Parse({}).ok());
  environment_.clear();
  EXPECT_TRUE(Parse({"--config", WriteFile("tensor_parallel_size: 1\nmmap: true\n")}).ok());
  EXPECT_EQ(Find("mmap"), nullptr);
}

TEST_F(OptionTableTest, ThePositionalArgumentHasAName) {
  table_.NamePositional("DIR", "a folder");
  ::testing::internal::CaptureStdout();
  EXPECT_TRUE(absl::IsCancelled(Parse({"--help"})));
  const std::string help = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(help, HasSubstr("DIR"));
  EXPECT_THAT(help, HasSubstr("a folder"));
  EXPECT_EQ(help.find("MODEL"), std::string::npos);
}

// 0.001F is more than 0.001, and 0.7F less than 0.7.
TEST_F(OptionTableTest, TheBoundsOfNumbersAreTakenAsTheyAreWritten) {
  float rate = 0.0F;
  std::optional<float> share;
  table_.Float("rate", &rate, 0.001F, 0.7F, "a rate");
  table_.OptionalFloat("share", &share, 0.001F, 0.7F, "a share");
  EXPECT_TRUE(Parse({"--rate", "0.001", "--share", "0.001"}).ok());
  EXPECT_EQ(rate, 0.001F);
  EXPECT_EQ(share, 0.001F);
  EXPECT_TRUE(Parse({"--rate", "0.7", "--share", "0.7"}).ok());
  for (const char* text : {"0.00099", "0.70001", "nan"}) {
    EXPECT_THAT(std::string(Parse({"--rate", text}).message()), HasSubstr("in 0.001..0.7"));
    EXPECT_THAT(std::string(Parse({"--share", text}).message()), HasSubstr("in 0.001..0.7"));
  }
}

TEST_F(OptionTableTest, SizesHaveARange) {
  uint64_t bytes = 4096;
  table_.Bytes("size", &bytes, 1024, 1 << 20, "a size");
  EXPECT_TRUE(Parse({"--size", "1MiB"}).ok());
  EXPECT_EQ(bytes, 1U << 20);
  for (const char* text : {"1023", "2MiB", "8EiB", "-1", "99999999999TiB"}) {
    const std::string message(Parse({"--size", text}).message());
    EXPECT_THAT(message, HasSubstr("--size must be a size"));
    EXPECT_THAT(message, HasSubstr("1024..1048576 bytes")) << text;
  }
}

}  // namespace
}  // namespace spindle::config
