// What every kernel call receives besides its arguments: the slice of work and the executing
// worker's resources. The same shape fits a CPU worker (scratch memory) and a GPU launch (a
// stream). Thread-safety: plain values; one Exec belongs to one worker.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spindle::kernels {

// Return codes of kernels; platform maps them to Status. 0 is success.
enum Code : int {
  kOk = 0,
  kInvalidArgument = 1,  // a shape or pointer the kernel's REQUIRES forbids
  kUnsupported = 2,      // a type or size without an implementation on this backend
  kScratchTooSmall = 3,
};

// Half-open range of a kernel's work units; what a unit is, each kernel documents. Results never
// depend on how the units are divided among workers.
struct WorkRange {
  uint32_t begin;
  uint32_t end;
};

// Scratch that every worker offers; large enough for each kernel's documented need.
inline constexpr size_t kScratchBytes = size_t{4} << 20;

struct Exec {
  void* scratch;         // kScratchBytes, 64-byte aligned, private to the worker; null on a GPU
  size_t scratch_bytes;  // size of scratch
  uint32_t worker;       // 0 = the engine thread
  void* stream;          // GPU stream; null on a CPU
};

}  // namespace spindle::kernels
