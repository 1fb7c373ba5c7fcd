// The file layer over the real system: what it promises, and errors that name their path.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "kv/disk/aligned_buffer.h"
#include "kv/disk/disk_files.h"
#include "support/temp_folder.h"

namespace spindle::kv::disk {
namespace {

class SystemFilesTest : public ::testing::Test {
 protected:
  // The status is an error that says which path it is about.
  static void ExpectNames(const absl::Status& status, const std::string& path) {
    EXPECT_FALSE(status.ok()) << path;
    EXPECT_NE(status.message().find(path), std::string::npos) << status;
  }

  test::TempFolder folder;
  DiskFiles& files = SystemFiles();
  const std::string path = folder.path() + "/file";
  const std::string missing = folder.path() + "/missing/file";
};

TEST_F(SystemFilesTest, WhatIsWrittenIsThereAfterReopening) {
  for (const bool direct : {false, true}) {
    auto file = files.Open(path, OpenMode::kCreate, direct);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_GE((*file)->descriptor(), 0);
    AlignedBuffer buffer(kAlignment);
    std::memset(buffer.data(), 5, kAlignment);
    const iovec part{buffer.data(), kAlignment};
    ASSERT_EQ(*(*file)->WriteAt(kAlignment, {&part, 1}), kAlignment);
    ASSERT_TRUE((*file)->Sync().ok());
    ASSERT_TRUE(files.SyncDirectory(folder.path()).ok());
    file = files.Open(path, OpenMode::kRead, direct);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(*(*file)->Size(), 2 * kAlignment);
    std::memset(buffer.data(), 0, kAlignment);
    ASSERT_EQ(*(*file)->ReadAt(kAlignment, {&part, 1}), kAlignment);
    EXPECT_TRUE(std::ranges::all_of(buffer.span(), [](uint8_t byte) { return byte == 5; }));
    EXPECT_EQ(*(*file)->ReadAt(2 * kAlignment, {&part, 1}), 0U);  // behind the end
    ExpectNames((*file)->WriteAt(0, {&part, 1}).status(), path);  // opened for reading
    ASSERT_TRUE(files.Unlink(path).ok());
  }
}

TEST_F(SystemFilesTest, ModesOfOpening) {
  ExpectNames(files.Open(path, OpenMode::kRead, false).status(), path);
  ExpectNames(files.Open(path, OpenMode::kWrite, true).status(), path);
  ASSERT_TRUE(files.Open(path, OpenMode::kCreate, false).ok());
  ExpectNames(files.Open(path, OpenMode::kCreate, false).status(), path);
  ExpectNames(files.Open(path, OpenMode::kCreate, true).status(), path);
  EXPECT_TRUE(files.Open(path, OpenMode::kWrite, false).ok());
}

TEST_F(SystemFilesTest, FoldersAreMadeWithTheirParents) {
  const std::string deep = folder.path() + "/a/b/c";
  ASSERT_TRUE(files.MakeDirectory(deep).ok());
  EXPECT_TRUE(files.MakeDirectory(deep).ok());
  folder.Write("file", "x");
  ExpectNames(files.MakeDirectory(path + "/below"), path);
  const auto entries = files.List(folder.path());
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2U);
  for (const DirectoryEntry& entry : *entries) {
    EXPECT_EQ(entry.is_directory, entry.name == "a");
    EXPECT_TRUE(entry.is_directory || (entry.name == "file" && entry.bytes == 1));
  }
}

TEST_F(SystemFilesTest, WhatIsNotThereIsNamed) {
  const std::string nowhere = folder.path() + "/nowhere";
  ExpectNames(files.List(nowhere).status(), nowhere);
  ExpectNames(files.SyncDirectory(nowhere), nowhere);
  ExpectNames(files.FreeSpace(nowhere).status(), nowhere);
  ExpectNames(files.Unlink(nowhere), nowhere);
  ExpectNames(files.Rename(nowhere, path), nowhere);
  ExpectNames(files.Lock(missing).status(), missing);
}

TEST_F(SystemFilesTest, FreeSpaceIsPartOfTheTotal) {
  const auto space = files.FreeSpace(folder.path());
  ASSERT_TRUE(space.ok()) << space.status();
  EXPECT_GT(space->total_bytes, 0U);
  EXPECT_LE(space->free_bytes, space->total_bytes);
}

TEST_F(SystemFilesTest, ALockIsHeldByOneAndNamesIt) {
  auto lock = files.Lock(path);
  ASSERT_TRUE(lock.ok()) << lock.status();
  const absl::Status second = files.Lock(path).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second));
  EXPECT_NE(second.message().find("process " + std::to_string(getpid())), std::string::npos);
  *lock = nullptr;
  EXPECT_TRUE(files.Lock(path).ok());
}

TEST_F(SystemFilesTest, RenameReplaces) {
  folder.Write("file", "old");
  const std::string other = folder.Write("other", "newer");
  ASSERT_TRUE(files.Rename(other, path).ok());
  EXPECT_EQ(*(*files.Open(path, OpenMode::kRead, false))->Size(), 5U);
  EXPECT_NE(files.UniqueId(), files.UniqueId());
}

}  // namespace
}  // namespace spindle::kv::disk
