// Owned, aligned memory for tensors and arenas.
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/statusor.h"

namespace spindle::platform {

// Zeroed pages straight from the kernel, 2 MiB-aligned when large and marked for huge pages.
// Move-only.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // ERRORS: kResourceExhausted. `bytes` 0 gives an empty buffer.
  static absl::StatusOr<AlignedBuffer> Allocate(size_t bytes);
  ~AlignedBuffer();

  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  [[nodiscard]] uint8_t* data() const { return data_; }

  [[nodiscard]] size_t size() const { return bytes_; }

  template <typename T>
  [[nodiscard]] std::span<T> As() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  AlignedBuffer(uint8_t* data, size_t bytes) : data_(data), bytes_(bytes) {}

  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// Makes the C library's allocator return what is freed: large pieces at once, whatever was freed
// before, and from few arenas. For programs whose memory is bounded; call it before there are
// threads.
void BoundAllocator();

}  // namespace spindle::platform
