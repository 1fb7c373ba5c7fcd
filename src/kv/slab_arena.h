// The memory of the host tier: one reserved range of addresses, committed in 64 MiB slabs from its
// front. Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spindle::kv {

inline constexpr size_t kSlabBytes = size_t{64} << 20;

// Committed bytes are zeroed, readable and writable, marked for huge pages, and never given back.
// Addresses never change. Move-only.
class SlabArena {
 public:
  // Takes addresses only, no memory. ERRORS: kResourceExhausted (address space).
  static absl::StatusOr<SlabArena> Reserve(size_t bytes);
  ~SlabArena();
  SlabArena(SlabArena&& other) noexcept;
  SlabArena& operator=(SlabArena&& other) noexcept;

  // Commits whole slabs until [0, bytes) is usable. REQUIRES: bytes <= size().
  // ERRORS: kResourceExhausted (the system refuses the memory; nothing changed).
  [[nodiscard]] absl::Status Commit(size_t bytes);

  [[nodiscard]] uint8_t* data() const { return data_; }

  [[nodiscard]] size_t size() const { return bytes_; }

  [[nodiscard]] size_t committed_bytes() const { return committed_bytes_; }

 private:
  SlabArena(uint8_t* mapping, size_t mapping_bytes, uint8_t* data, size_t bytes)
      : mapping_(mapping), mapping_bytes_(mapping_bytes), data_(data), bytes_(bytes) {}

  uint8_t* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  uint8_t* data_ = nullptr;  // first 2 MiB border inside the mapping
  size_t bytes_ = 0;
  size_t committed_bytes_ = 0;
};

}  // namespace spindle::kv
