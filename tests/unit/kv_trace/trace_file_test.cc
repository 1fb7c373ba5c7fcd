#include "kv/trace/trace_file.h"

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/read_file.h"
#include "support/temp_folder.h"

namespace spindle::kv {
namespace {

// Files of this process end at so many bytes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }

  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(TraceFile, IsNewAndItsOwnersOnly) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/trace";
  const auto file = TraceFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Write(std::vector<uint8_t>{'a', 'b'}).ok());
  EXPECT_TRUE((*file)->Write(std::vector<uint8_t>{'c'}).ok());
  EXPECT_EQ(ReadFile(path, 100).value(), "abc");

  struct stat info {};

  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(TraceFile::Create(path).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(TraceFile::Create(folder.path() + "/no/trace").status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(TraceFile, TakesBackWhatDoesNotFit) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/trace";
  const auto file = TraceFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<uint8_t> bytes(1000, 'x');
  const auto full = [&] {
    const FileSizeLimit limit(2500);
    EXPECT_TRUE((*file)->Write(bytes).ok());
    EXPECT_TRUE((*file)->Write(bytes).ok());
    return (*file)->Write(bytes);
  }();
  EXPECT_EQ(full.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(full.message().find(path), std::string::npos) << full;
  EXPECT_EQ(ReadFile(path, 10'000).value().size(), 2000U);
  // There is room again, but a trace has no gaps.
  EXPECT_EQ((*file)->Write(bytes).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReadFile(path, 10'000).value().size(), 2000U);
}

}  // namespace
}  // namespace spindle::kv
