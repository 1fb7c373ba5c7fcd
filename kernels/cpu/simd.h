// Sixteen float or int32 lanes in the registers of the instruction set this object is compiled for,
// and the dot products that differ most between sets. Thread-safety: pure functions.
//
//   F32x16, I32x16   Zero Splat Load Store Add Sub Mul Div Max Min MulAdd(a·b+c) SplatInt AddInt
//   TimesHighUnit StoreInt conversions      ToFloat, ToNearestInt (ties to even),
//   LoadHalf/LoadBf16/LoadU8/LoadS8 (16 packed elements to float),
//                    StoreBf16 (nearest even, NaN kept), StoreS8 (saturating)
//   ScaleByPowerOfTwo(v, t)   v · 2^n where t = n + 1.5 · 2^23
//   SumInt, MaxMagnitudeBits  over all lanes; the latter as bit pattern, so that NaN is the largest
//   CodeVec          64 code bytes: LoadCodes LowNibbles HighNibbles;
//   kMaxSplitRows    rows whose sums are split
//   BlockDots<max code, groups, rows> their exact int32 dot products DotBf16Pair      one step of a
//   bf16 product
//
// MulAdd is fused where the set has it. The choice is per set, so a table is consistent with
// itself.
#pragma once

#ifndef SPINDLE_KERNEL_ISA
#error "per-ISA header: compile it in an object of kernels/CMakeLists.txt"
#endif

#include <cstdint>

// Forced: a kernel that calls these out of line would pass vectors through memory.
#define SPINDLE_INLINE [[maybe_unused]] static inline __attribute__((always_inline))
#define SPINDLE_INLINE_MEMBER inline __attribute__((always_inline))

// Before a loop with a constant count over an array of vectors: only constant indices let the array
// live in registers.
#if defined(__clang__)
#define SPINDLE_UNROLL _Pragma("unroll")
#else
#define SPINDLE_UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#include "kernels/cpu/simd_avx512.h"
#elif defined(__AVX2__)
#include "kernels/cpu/simd_avx2.h"
#else
#include "kernels/cpu/simd_sse2.h"
#endif

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

// Of a mask of lanes.
SPINDLE_INLINE uint32_t CountBits(uint64_t bits) {
  return static_cast<uint32_t>(__builtin_popcountll(bits));
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
