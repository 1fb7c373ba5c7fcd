#include "kv/trace/trace_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>

namespace spindle::kv {

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path) {
  constexpr mode_t kOwnerOnly = 0600;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly);
  if (fd < 0) {
    const int error = errno;
    return error == EEXIST ? absl::AlreadyExistsError(path + " exists")
                           : absl::UnavailableError("trace " + path + ": " +
                                                    std::generic_category().message(error));
  }
  return std::unique_ptr<TraceFile>(new TraceFile(fd, path));
}

absl::Status TraceFile::Fail(int error) const {
  return absl::UnavailableError("trace " + path_ + ": " + std::generic_category().message(error));
}

absl::Status TraceFile::Write(std::span<const uint8_t> bytes) {
  if (!is_open_) {
    return Fail(EBADF);
  }
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (count > 0) {
      done += static_cast<size_t>(count);
      continue;
    }
    const int error = count == 0 ? ENOSPC : errno;
    if (error == EINTR) {
      continue;
    }
    is_open_ = false;
    // If this fails as well, a reader finds a part that is not whole, and stops in front of it.
    static_cast<void>(ftruncate(file_.get(), size_bytes_));
    return Fail(error);
  }
  size_bytes_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

}  // namespace spindle::kv
