#include "platform/mapped_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/file_descriptor.h"

namespace spindle::platform {
namespace {

absl::Status ErrnoStatus(int error, const std::string& path) {
  const std::string message =
      path + ": " + std::strerror(error);  // NOLINT(concurrency-mt-unsafe): glibc's is safe
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    return ErrnoStatus(errno, path);
  }

  struct stat info {};

  if (fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(errno, path);
  }
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    return absl::InvalidArgumentError(
        path + (S_ISREG(info.st_mode) ? ": the file is empty" : ": not a regular file"));
  }
  const auto bytes = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, path);
  }
  return MappedFile(static_cast<const uint8_t*>(data), bytes);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<uint8_t*>(data_), bytes_);
  }
}

void MappedFile::DropCache(size_t offset, size_t bytes) const {
  const size_t begin = (offset + 4095) / 4096 * 4096;
  const size_t end = (offset + bytes) / 4096 * 4096;
  if (begin < end && end <= bytes_) {
    madvise(const_cast<uint8_t*>(data_) + begin, end - begin, MADV_DONTNEED);
  }
}

}  // namespace spindle::platform
