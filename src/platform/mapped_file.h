// A read-only memory-mapped file.
// Thread-safety: thread-compatible; the bytes may be read from any thread while the object lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace spindle::platform {

class MappedFile {
 public:
  // ERRORS: kNotFound, kPermissionDenied, kInvalidArgument (a directory, an empty file),
  // kUnavailable.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  ~MappedFile();

  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  [[nodiscard]] std::span<const uint8_t> bytes() const { return {data_, bytes_}; }

  // Tells the kernel that a part will not be needed again; its page cache may go. Offsets are
  // rounded inwards.
  void DropCache(size_t offset, size_t bytes) const;

 private:
  MappedFile(const uint8_t* data, size_t bytes) : data_(data), bytes_(bytes) {}

  const uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace spindle::platform
