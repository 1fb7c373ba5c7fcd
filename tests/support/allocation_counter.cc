#include "support/allocation_counter.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<uint64_t> allocation_count{0};

void* CountedAllocate(std::size_t bytes, std::size_t alignment) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    memory = std::malloc(bytes == 0 ? 1 : bytes);
  } else {
    memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

namespace spindle::test {

uint64_t AllocationCount() {
  return allocation_count.load(std::memory_order_relaxed);
}

}  // namespace spindle::test

void* operator new(std::size_t bytes) {
  return CountedAllocate(bytes, 1);
}

void* operator new[](std::size_t bytes) {
  return CountedAllocate(bytes, 1);
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return CountedAllocate(bytes, static_cast<std::size_t>(alignment));
}

void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return CountedAllocate(bytes, static_cast<std::size_t>(alignment));
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete[](void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

void operator delete[](void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

void operator delete[](void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*align*/) noexcept {
  std::free(memory);
}

void operator delete[](void* memory, std::size_t /*bytes*/, std::align_val_t /*align*/) noexcept {
  std::free(memory);
}
