#include "base/read_file.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spindle {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMaxBytes = 100;

class ReadFileTest : public ::testing::Test {
 protected:
  ReadFileTest() { std::filesystem::create_directories(folder_); }

  ~ReadFileTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string Write(const std::string& text) const {
    const std::string path = folder_ + "/file";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  const std::string folder_ = ::testing::TempDir() + "read_file_test." + std::to_string(getpid());
};

TEST_F(ReadFileTest, ReadsAllBytes) {
  const std::string text("a\0\xff\n", 4);
  EXPECT_EQ(ReadFile(Write(text), kMaxBytes).value(), text);
  EXPECT_EQ(ReadFile(Write(""), kMaxBytes).value(), "");
  const std::string long_text(200000, 'x');
  EXPECT_EQ(ReadFile(Write(long_text), long_text.size()).value(), long_text);
}

TEST_F(ReadFileTest, FollowsLinks) {
  const std::string link = folder_ + "/link";
  std::filesystem::create_symlink(Write("text"), link);
  EXPECT_EQ(ReadFile(link, kMaxBytes).value(), "text");
}

TEST_F(ReadFileTest, RefusesMoreThanTheBound) {
  EXPECT_TRUE(ReadFile(Write(std::string(kMaxBytes, 'x')), kMaxBytes).ok());
  const auto result = ReadFile(Write(std::string(kMaxBytes + 1, 'x')), kMaxBytes);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("longer than 100 bytes"));
}

TEST_F(ReadFileTest, RefusesWhatIsNoRegularFile) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {folder_, std::string("/dev/zero"), pipe}) {
    const auto result = ReadFile(path, kMaxBytes);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(path));
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("regular file"));
  }
}

TEST_F(ReadFileTest, NamesAMissingFile) {
  const std::string path = folder_ + "/none";
  const auto result = ReadFile(path, kMaxBytes);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(path));
}

}  // namespace
}  // namespace spindle
