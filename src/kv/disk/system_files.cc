// DiskFiles over the system's calls.
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file_descriptor.h"
#include "base/status_macros.h"
#include "kv/disk/disk_files.h"

namespace spindle::kv::disk {
namespace {

constexpr mode_t kFileMode = 0600;
constexpr mode_t kDirectoryMode = 0700;

class SystemFile final : public DiskFile {
 public:
  SystemFile(std::string path, int fd, bool direct)
      : DiskFile(std::move(path)), fd_(fd), direct_(direct) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<const iovec> parts) override {
    return Transfer(offset, [&] {
      return preadv(
          fd_.get(), parts.data(), static_cast<int>(parts.size()), static_cast<off_t>(offset));
    });
  }

  absl::StatusOr<size_t> WriteAt(uint64_t offset, std::span<const iovec> parts) override {
    return Transfer(offset, [&] {
      return pwritev(
          fd_.get(), parts.data(), static_cast<int>(parts.size()), static_cast<off_t>(offset));
    });
  }

  absl::Status Sync() override {
    if (fdatasync(fd_.get()) != 0) {
      return ErrnoStatus(errno, "fdatasync " + path());
    }
    if (!direct_) {
      // Records are read once, straight into their place; the page cache would only hold them
      // twice.
      posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Size() override {
    struct stat info {};

    if (fstat(fd_.get(), &info) != 0) {
      return ErrnoStatus(errno, path());
    }
    return static_cast<uint64_t>(info.st_size);
  }

  [[nodiscard]] int descriptor() const override { return fd_.get(); }

  [[nodiscard]] bool direct() const override { return direct_; }

 private:
  template <typename Call>
  absl::StatusOr<size_t> Transfer(uint64_t offset, Call call) {
    for (;;) {
      const ssize_t moved = call();
      if (moved >= 0) {
        return static_cast<size_t>(moved);
      }
      if (errno != EINTR) {
        return ErrnoStatus(errno, At(path(), offset));
      }
    }
  }

  const FileDescriptor fd_;
  const bool direct_;
};

class SystemLock final : public DiskLock {
 public:
  explicit SystemLock(int fd) : fd_(fd) {}

 private:
  const FileDescriptor fd_;  // closing releases the lock
};

// Who wrote the lock file, for messages; empty when unknown.
std::string ReadOwner(int fd) {
  std::array<char, 32> text{};
  const ssize_t size = pread(fd, text.data(), text.size() - 1, 0);
  std::string owner(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
  owner.erase(owner.find_last_not_of('\n') + 1);
  return owner;
}

class SystemFileSystem final : public DiskFiles {
 public:
  absl::StatusOr<std::unique_ptr<DiskFile>> Open(const std::string& path,
                                                 OpenMode mode,
                                                 bool direct) override {
    int flags = O_CLOEXEC | (mode == OpenMode::kRead ? O_RDONLY : O_RDWR);
    if (mode == OpenMode::kCreate) {
      flags |= O_CREAT | O_EXCL;
    }
    if (direct) {
      const int fd = open(path.c_str(), flags | O_DIRECT, kFileMode);
      if (fd >= 0) {
        return std::make_unique<SystemFile>(path, fd, true);
      }
      if (errno != EINVAL) {
        return ErrnoStatus(errno, path);
      }
      // O_DIRECT was refused after the file was made.
      flags &= ~O_EXCL;
    }
    const int fd = open(path.c_str(), flags, kFileMode);
    if (fd < 0) {
      return ErrnoStatus(errno, path);
    }
    return std::make_unique<SystemFile>(path, fd, false);
  }

  absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    DIR* const stream = opendir(directory.c_str());
    if (stream == nullptr) {
      return ErrnoStatus(errno, directory);
    }
    std::vector<DirectoryEntry> entries;
    for (;;) {
      errno = 0;
      const dirent* const entry =
          readdir(stream);  // NOLINT(concurrency-mt-unsafe): a stream of its own
      if (entry == nullptr) {
        break;
      }
      const std::string name(static_cast<const char*>(entry->d_name));

      struct stat info {};

      if (name == "." || name == ".." ||
          fstatat(dirfd(stream), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
        continue;
      }
      entries.push_back({.name = name,
                         .is_directory = S_ISDIR(info.st_mode),
                         .bytes = static_cast<uint64_t>(info.st_size),
                         .allocated_bytes = static_cast<uint64_t>(info.st_blocks) * 512});
    }
    const int error = errno;
    closedir(stream);
    if (error != 0) {
      return ErrnoStatus(error, directory);
    }
    return entries;
  }

  absl::Status MakeDirectory(const std::string& directory) override {
    const std::filesystem::path path(directory);
    std::filesystem::path prefix;
    for (const std::filesystem::path& part : path) {
      prefix /= part;
      if (mkdir(prefix.c_str(), kDirectoryMode) != 0 && errno != EEXIST) {
        const int error = errno;

        struct stat info {};

        // A parent may exist on a read-only file system.
        if (stat(prefix.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
          return ErrnoStatus(error, prefix.native());
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& directory) override {
    const FileDescriptor fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0 || fsync(fd.get()) != 0) {
      return ErrnoStatus(errno, "fsync " + directory);
    }
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus()
                                                 : ErrnoStatus(errno, from + " -> " + to);
  }

  absl::Status Unlink(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, path);
  }

  absl::StatusOr<FreeSpaceInfo> FreeSpace(const std::string& directory) override {
    struct statvfs info {};

    if (statvfs(directory.c_str(), &info) != 0) {
      return ErrnoStatus(errno, directory);
    }
    return FreeSpaceInfo{.free_bytes = info.f_bavail * info.f_frsize,
                         .total_bytes = info.f_blocks * info.f_frsize};
  }

  absl::StatusOr<std::unique_ptr<DiskLock>> Lock(const std::string& path) override {
    FileDescriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kFileMode));
    if (fd.get() < 0) {
      return ErrnoStatus(errno, path);
    }
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) {
        return ErrnoStatus(errno, "flock " + path);
      }
      return absl::FailedPreconditionError(path + ": in use by process " + ReadOwner(fd.get()));
    }
    const std::string owner = std::to_string(getpid()) + "\n";
    if (ftruncate(fd.get(), 0) != 0 ||
        pwrite(fd.get(), owner.data(), owner.size(), 0) != static_cast<ssize_t>(owner.size())) {
      return ErrnoStatus(errno, path);
    }
    return std::make_unique<SystemLock>(fd.release());
  }

  std::array<uint8_t, 16> UniqueId() override {
    std::array<uint8_t, 16> id{};
    SPINDLE_CHECK(getrandom(id.data(), id.size(), 0) == static_cast<ssize_t>(id.size()));
    return id;
  }

  [[nodiscard]] bool has_descriptors() const override { return true; }
};

}  // namespace

DiskFiles& SystemFiles() {
  static SystemFileSystem files;
  return files;
}

}  // namespace spindle::kv::disk
