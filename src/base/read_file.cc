#include "base/read_file.h"

#include <array>
#include <cerrno>
#include <cstddef>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "base/file_descriptor.h"

namespace spindle {
namespace {

absl::Status SystemError(int error, const std::string& path) {
  const std::string prefix = path + " cannot be read";
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(prefix + ": there is no such file");
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(prefix + ": permission denied");
    case ENXIO:  // a socket
    case EISDIR:
      return absl::InvalidArgumentError(prefix + ": it is not a regular file");
    case ELOOP:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(prefix + ": the path is too long or has a loop of links");
    default:
      return absl::UnavailableError(prefix + ": system error " + std::to_string(error));
  }
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  // Without O_NONBLOCK opening a pipe would wait for a writer.
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));

  struct stat info {};

  if (fd.get() < 0 || fstat(fd.get(), &info) != 0) {
    return SystemError(errno, path);
  }
  if (!S_ISREG(info.st_mode)) {
    return SystemError(EISDIR, path);
  }
  std::string text;
  std::array<char, 1 << 16> buffer{};
  // The size in `info` is not relied on: files of /proc say 0, and a file may grow meanwhile.
  for (;;) {
    const ssize_t count = read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return SystemError(errno, path);
    }
    if (count == 0) {
      return text;
    }
    if (static_cast<uint64_t>(count) > max_bytes - text.size()) {
      return absl::InvalidArgumentError(path + " cannot be read: it is longer than " +
                                        std::to_string(max_bytes) + " bytes");
    }
    text.append(buffer.data(), static_cast<size_t>(count));
  }
}

}  // namespace spindle
