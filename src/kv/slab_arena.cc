#include "kv/slab_arena.h"

#include <algorithm>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "base/status_macros.h"

namespace spindle::kv {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

absl::StatusOr<SlabArena> SlabArena::Reserve(size_t bytes) {
  const size_t mapping_bytes = bytes + kHugePageBytes;
  void* mapping =
      mmap(nullptr, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError("cannot reserve " + std::to_string(bytes) +
                                        " bytes of address space for KV");
  }
  auto* begin = static_cast<uint8_t*>(mapping);
  const size_t misalignment = reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  uint8_t* data = begin + (misalignment == 0 ? 0 : kHugePageBytes - misalignment);
  return SlabArena(begin, mapping_bytes, data, bytes);
}

SlabArena::~SlabArena() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapping_bytes_);
  }
}

SlabArena::SlabArena(SlabArena&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      committed_bytes_(std::exchange(other.committed_bytes_, 0)) {}

SlabArena& SlabArena::operator=(SlabArena&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(committed_bytes_, other.committed_bytes_);
  return *this;
}

absl::Status SlabArena::Commit(size_t bytes) {
  SPINDLE_CHECK(bytes <= bytes_);
  if (bytes <= committed_bytes_) {
    return absl::OkStatus();
  }
  const size_t slabs_end = (bytes + kSlabBytes - 1) / kSlabBytes * kSlabBytes;
  const size_t target = std::min(bytes_, slabs_end);
  if (mprotect(data_ + committed_bytes_, target - committed_bytes_, PROT_READ | PROT_WRITE) != 0) {
    return absl::ResourceExhaustedError("the system refuses " +
                                        std::to_string(target - committed_bytes_) +
                                        " more bytes of memory for KV");
  }
  // Advisory: plain pages work too.
  madvise(data_ + committed_bytes_, target - committed_bytes_, MADV_HUGEPAGE);
  committed_bytes_ = target;
  return absl::OkStatus();
}

}  // namespace spindle::kv
