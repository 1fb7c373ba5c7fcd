#include "config/option_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spindle::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> WarningsOf(const std::vector<std::string>& arguments,
                                    const std::map<std::string, std::string>& environment = {}) {
  LoadOptions options;
  OptionTable table;
  AddLoadOptions(table, options);
  std::vector<std::string> unused;
  const absl::Status status =
      table.Parse("test", "", arguments, environment, &options.model_path, &unused);
  EXPECT_TRUE(status.ok()) << status;
  return LoadWarnings(table, options);
}

TEST(OptionWarningsTest, DefaultsAreSilent) {
  EXPECT_THAT(WarningsOf({"m.gguf"}), IsEmpty());
}

TEST(OptionWarningsTest, AnOptionWithoutEffectIsNamedWithWhatItNeeds) {
  struct Row {
    const char* option;
    const char* value;
    std::vector<std::string> needed;
  };

  for (const Row& row : {Row{"--kv-fast-bytes", "1GiB", {"--kv-mode", "mirror"}},
                         Row{"--kv-buffer-ratio", "2", {"--kv-mode", "mirror"}},
                         Row{"--sim-link-gbps", "2", {"--kv-mode", "emulated-link"}},
                         Row{"--sim-link-latency-us", "2", {"--kv-mode", "emulated-link"}},
                         Row{"--kv-disk-bytes", "1GiB", {"--kv-disk-path", "/d"}},
                         Row{"--kv-disk-min-free", "1GiB", {"--kv-disk-path", "/d"}},
                         Row{"--kv-max-sessions", "2", {"--kv-disk-path", "/d"}},
                         Row{"--kv-trace-bytes", "1MiB", {"--kv-trace", "/t"}}}) {
    EXPECT_THAT(WarningsOf({row.option, row.value}),
                ElementsAre(HasSubstr(std::string(row.option) + " has no effect without " +
                                      row.needed.front())));
    std::vector<std::string> both = row.needed;
    both.insert(both.end(), {row.option, row.value});
    EXPECT_THAT(WarningsOf(both), IsEmpty()) << row.option;
  }
  EXPECT_THAT(WarningsOf({"--kv-mode", "mirror", "--sim-link-gbps", "2"}),
              ElementsAre(HasSubstr("--sim-link-gbps")));
  EXPECT_THAT(WarningsOf({"--kv-synthetic-pages", "2"}),
              ElementsAre(HasSubstr("--kv-synthetic-pages has no effect without")));
  EXPECT_THAT(WarningsOf({}, {{"SPINDLE_KV_DISK_BYTES", "1GiB"}}),
              ElementsAre(HasSubstr("--kv-disk-bytes")));
}

TEST(OptionWarningsTest, DrawnPagesMakeAnswersMeaningless) {
  EXPECT_THAT(WarningsOf({"--kv-synthetic-selection", "medium"}),
              ElementsAre(HasSubstr("--kv-synthetic-selection medium makes answers meaningless")));
}

}  // namespace
}  // namespace spindle::config
