// Where the bytes of a trace go. Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace spindle::kv {

class TraceSink {
 public:
  virtual ~TraceSink() = default;

  // Takes all of the bytes, behind those before, or none. ERRORS: kResourceExhausted (no room at
  // present), kUnavailable (the file system failed; nothing more will be taken).
  [[nodiscard]] virtual absl::Status Write(std::span<const uint8_t> bytes) = 0;
};

// A file that is written at once.
class TraceFile final : public TraceSink {
 public:
  // A new file, mode 0600. ERRORS: kAlreadyExists; kUnavailable (the file system failed).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path);

  // May block. What was written of bytes that do not fit is taken back, so that the file ends with
  // the last bytes that were taken whole.
  [[nodiscard]] absl::Status Write(std::span<const uint8_t> bytes) override;

 private:
  TraceFile(int fd, std::string path) : file_(fd), path_(std::move(path)) {}

  [[nodiscard]] absl::Status Fail(int error) const;

  FileDescriptor file_;
  std::string path_;
  int64_t size_bytes_ = 0;
  bool is_open_ = true;
};

}  // namespace spindle::kv
