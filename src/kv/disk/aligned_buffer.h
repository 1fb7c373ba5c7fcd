// Memory for direct I/O: starts on a 4 KiB border, whole 4 KiB pages. Thread-safety: value type.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "base/status_macros.h"
#include "kv/disk/disk_files.h"

namespace spindle::kv::disk {

// Move-only. Fresh bytes have no meaning.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;

  explicit AlignedBuffer(uint64_t bytes)
      : bytes_(RoundUp(bytes)),
        data_(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, RoundUp(bytes)))) {
    SPINDLE_CHECK(bytes > 0 && data_ != nullptr);
  }

  [[nodiscard]] uint8_t* data() const { return data_.get(); }

  // A multiple of 4 KiB.
  [[nodiscard]] uint64_t size() const { return bytes_; }

  [[nodiscard]] std::span<uint8_t> span() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(uint8_t* data) const { std::free(data); }
  };

  uint64_t bytes_ = 0;
  std::unique_ptr<uint8_t, Free> data_;
};

}  // namespace spindle::kv::disk
