// An open file of the system, closed on destruction. Thread-safety: thread-compatible.
#pragma once

#include <utility>

#include <unistd.h>

namespace spindle {

class FileDescriptor {
 public:
  // Takes what open() and its like return; -1 holds nothing.
  explicit FileDescriptor(int fd) : fd_(fd) {}

  ~FileDescriptor() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }

  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  [[nodiscard]] int get() const { return fd_; }

  // The caller closes it from now on.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace spindle
