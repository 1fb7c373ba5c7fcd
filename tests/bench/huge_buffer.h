// Memory of a bench: page-aligned, touched, in huge pages where the system has them.
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/mman.h>

namespace spindle::bench {

class HugeBuffer {
 public:
  explicit HugeBuffer(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    madvise(data_, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes; i += 4096) {
      data()[i] = 1;
    }
  }

  ~HugeBuffer() { munmap(data_, bytes_); }

  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  [[nodiscard]] uint8_t* data() const { return static_cast<uint8_t*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace spindle::bench
