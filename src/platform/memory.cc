#include "platform/memory.h"

#include <string>

#include <malloc.h>
#include <sys/mman.h>

namespace spindle::platform {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(size_t bytes) {
  if (bytes == 0) {
    return AlignedBuffer();
  }
  // Over-map by one huge page and trim, so that a large buffer begins on a huge-page border.
  const size_t align = bytes >= kHugePage ? kHugePage : 4096;
  const size_t mapped = bytes + (align > 4096 ? align : 0);
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) {
    return absl::ResourceExhaustedError("cannot allocate " + std::to_string(bytes) + " bytes");
  }
  auto* begin = static_cast<uint8_t*>(raw);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  auto* aligned = begin + ((address + align - 1) / align * align - address);
  const size_t page_bytes = (bytes + 4095) / 4096 * 4096;
  if (aligned > begin) {
    munmap(begin, static_cast<size_t>(aligned - begin));
  }
  uint8_t* end = aligned + page_bytes;
  const auto mapped_pages = (mapped + 4095) / 4096 * 4096;
  if (end < begin + mapped_pages) {
    munmap(end, static_cast<size_t>(begin + mapped_pages - end));
  }
  if (align == kHugePage) {
    madvise(aligned, page_bytes, MADV_HUGEPAGE);  // advisory: plain pages work too
  }
  return AlignedBuffer(aligned, bytes);
}

void BoundAllocator() {
  // Without a fixed threshold it grows with what is freed, up to 32 MiB, and so does what the
  // allocator keeps.
  constexpr int kMappedBytes = 128 << 10;
  constexpr int kMaxArenas = 4;
  mallopt(M_MMAP_THRESHOLD, kMappedBytes);
  mallopt(M_ARENA_MAX, kMaxArenas);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) {
    munmap(data_, (bytes_ + 4095) / 4096 * 4096);
  }
}

}  // namespace spindle::platform
