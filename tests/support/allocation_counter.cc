#include "support/allocation_counter.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include <malloc.h>

namespace {

// What the allocator keeps beside an allocation.
constexpr uint64_t kHeaderBytes = 8;

std::atomic<uint64_t> allocation_count{0};
std::atomic<uint64_t> allocated_bytes{0};

// Null when there is no memory.
void* TryAllocate(std::size_t bytes, std::size_t alignment) noexcept {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    memory = std::malloc(bytes == 0 ? 1 : bytes);
  } else {
    memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  if (memory != nullptr) {
    allocated_bytes.fetch_add(malloc_usable_size(memory) + kHeaderBytes, std::memory_order_relaxed);
  }
  return memory;
}

void* CountedAllocate(std::size_t bytes, std::size_t alignment) {
  void* const memory = TryAllocate(bytes, alignment);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

void CountedFree(void* memory) {
  if (memory != nullptr) {
    allocated_bytes.fetch_sub(malloc_usable_size(memory) + kHeaderBytes, std::memory_order_relaxed);
    std::free(memory);
  }
}

}  // namespace

namespace spindle::test {

uint64_t AllocationCount() {
  return allocation_count.load(std::memory_order_relaxed);
}

uint64_t AllocatedBytes() {
  return allocated_bytes.load(std::memory_order_relaxed);
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

// What std::stable_sort takes its buffer with.
void* operator new(std::size_t bytes, const std::nothrow_t& /*nothrow*/) noexcept {
  return TryAllocate(bytes, 1);
}

void* operator new[](std::size_t bytes, const std::nothrow_t& /*nothrow*/) noexcept {
  return TryAllocate(bytes, 1);
}

void operator delete(void* memory) noexcept {
  CountedFree(memory);
}

void operator delete[](void* memory) noexcept {
  CountedFree(memory);
}

void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  CountedFree(memory);
}

void operator delete[](void* memory, std::size_t /*bytes*/) noexcept {
  CountedFree(memory);
}

void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  CountedFree(memory);
}

void operator delete[](void* memory, std::align_val_t /*alignment*/) noexcept {
  CountedFree(memory);
}

void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*align*/) noexcept {
  CountedFree(memory);
}

void operator delete[](void* memory, std::size_t /*bytes*/, std::align_val_t /*align*/) noexcept {
  CountedFree(memory);
}
