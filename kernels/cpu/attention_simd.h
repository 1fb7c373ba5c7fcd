// Vector pieces of attention beyond simd.h: fixed-order reductions, 2^x, and the operand types of a
// product. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/codes.h"
#include "kernels/cpu/simd.h"

#if !defined(__AVX512BF16__)
#include <emmintrin.h>
#endif

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

inline constexpr uint32_t kLanes = 16;
inline constexpr float kLog2E = 0x1.715476p+0F;
inline constexpr float kLn2 = 0x1.62e43p-1F;
inline constexpr float kMinusInf = -__builtin_inff();
// Stands in for a maximum of -inf where it is subtracted: x - kLowest is -inf for x = -inf, and
// exact maxima are never below it.
inline constexpr float kLowest = -0x1.fffffep+127F;

#if defined(__AVX512BF16__)

SPINDLE_INLINE float ReduceMax(F32x16 value) {
  const __m256 eight =
      _mm256_max_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// Lanes are added as j + 8, then + 4, + 2, + 1.
SPINDLE_INLINE float ReduceAdd(F32x16 value) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

// The same sums of four values, which share the steps of the tree.
SPINDLE_INLINE void ReduceAddEach(const F32x16 (&values)[4], float (&sums)[4]) {
  const auto halves = [](F32x16 a, F32x16 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  };
  const F32x16 ab = halves(values[0], values[1]);
  const F32x16 cd = halves(values[2], values[3]);
  F32x16 four =
      _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  four = _mm512_add_ps(four, _mm512_permute_ps(four, 0xEE));
  four = _mm512_add_ps(four, _mm512_movehdup_ps(four));
  const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(sums, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, four)));
}

// Lanes of `value` whose bit is set, the others of `other`.
SPINDLE_INLINE F32x16 KeepLanes(uint64_t lanes, F32x16 value, F32x16 other) {
  return _mm512_mask_mov_ps(other, static_cast<__mmask16>(lanes), value);
}

#else

#if defined(__AVX2__)

SPINDLE_INLINE F32x16 KeepLanes(uint64_t lanes, F32x16 value, F32x16 other) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  F32x16 kept;
  for (int i = 0; i < 2; ++i) {
    const __m256i all = _mm256_set1_epi32(static_cast<int32_t>(lanes >> (8 * i)));
    const __m256i keeps = _mm256_cmpeq_epi32(_mm256_and_si256(all, bits), bits);
    kept.half[i] = _mm256_blendv_ps(other.half[i], value.half[i], _mm256_castsi256_ps(keeps));
  }
  return kept;
}

#else

SPINDLE_INLINE F32x16 KeepLanes(uint64_t lanes, F32x16 value, F32x16 other) {
  float kept[kLanes];
  float others[kLanes];
  Store(kept, value);
  Store(others, other);
  for (uint32_t j = 0; j < kLanes; ++j) {
    kept[j] = ((lanes >> j) & 1U) != 0 ? kept[j] : others[j];
  }
  return Load(kept);
}

#endif

SPINDLE_INLINE float ReduceMax(F32x16 value) {
  float lanes[kLanes];
  Store(lanes, value);
  const __m128 low = _mm_max_ps(_mm_loadu_ps(lanes), _mm_loadu_ps(lanes + 8));
  const __m128 high = _mm_max_ps(_mm_loadu_ps(lanes + 4), _mm_loadu_ps(lanes + 12));
  __m128 four = _mm_max_ps(low, high);
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

// Lanes are added as j + 8, then + 4, + 2, + 1.
SPINDLE_INLINE float ReduceAdd(F32x16 value) {
  float lanes[kLanes];
  Store(lanes, value);
  const __m128 low = _mm_add_ps(_mm_loadu_ps(lanes), _mm_loadu_ps(lanes + 8));
  const __m128 high = _mm_add_ps(_mm_loadu_ps(lanes + 4), _mm_loadu_ps(lanes + 12));
  __m128 four = _mm_add_ps(low, high);
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

#endif

SPINDLE_INLINE void ReduceAddEach(const F32x16 (&values)[1], float (&sums)[1]) {
  sums[0] = ReduceAdd(values[0]);
}

// 2^x for x ≤ 127. The polynomial for 2^f on [-1/2, 1/2] interpolates at Chebyshev nodes with value
// 1 at 0. Relative error, measured over a grid: degree 5 2.6e-7, degree 6 6.8e-8. Results below
// 2^-126 may be off by as much; -inf gives exactly 0, 0 exactly 1; NaN stays NaN.
template <int kDegree>
SPINDLE_INLINE F32x16 Exp2(F32x16 x) {
  static_assert(kDegree == 5 || kDegree == 6);
  const F32x16 shift = Splat(0x1.8p23F);
#if defined(__AVX512BF16__)
  const F32x16 clamped = Max(Splat(-200.0F), x);  // in this order a NaN passes
#else
  const F32x16 clamped = Max(Splat(-127.0F), x);
#endif
  const F32x16 shifted = Add(clamped, shift);
  const F32x16 whole = Sub(shifted, shift);
  const F32x16 f = Sub(clamped, whole);
  F32x16 p;
  if constexpr (kDegree == 5) {
    p = Splat(0x1.5ec866p-10F);
    p = MulAdd(p, f, Splat(0x1.3cbf6p-7F));
    p = MulAdd(p, f, Splat(0x1.c6afeep-5F));
    p = MulAdd(p, f, Splat(0x1.ebfa4cp-3F));
  } else {
    p = Splat(0x1.44138ap-13F);
    p = MulAdd(p, f, Splat(0x1.5f089p-10F));
    p = MulAdd(p, f, Splat(0x1.3b2a54p-7F));
    p = MulAdd(p, f, Splat(0x1.c6af6cp-5F));
    p = MulAdd(p, f, Splat(0x1.ebfbep-3F));
  }
  p = MulAdd(p, f, Splat(0x1.62e43p-1F));
  p = MulAdd(p, f, Splat(1.0F));
#if defined(__AVX512BF16__)
  return _mm512_scalef_ps(p, whole);
#else
  // The integer addition of ScaleByPowerOfTwo would garble a NaN; + 0 · x brings it back and
  // changes nothing else.
  return MulAdd(clamped, Zero(), ScaleByPowerOfTwo(p, shifted));
#endif
}

// cap · tanh(x / cap), with x · inner = 2 · log2(e) · x / cap and outer = cap.
SPINDLE_INLINE F32x16 SoftCap(F32x16 x, float inner, float outer) {
  const F32x16 y = Min(Splat(64.0F), Mul(x, Splat(inner)));
  const F32x16 ratio = Div(Splat(2.0F), Add(Exp2<6>(y), Splat(1.0F)));
  return Mul(Splat(outer), Sub(Splat(1.0F), ratio));
}

// Operands of one product step: an element is 4 bytes wide, a float or (pairs) two bf16 of
// consecutive k.
struct FloatOp {
  static constexpr bool kPairs = false;
  using Operand = F32x16;

  SPINDLE_INLINE Operand LoadOperand(const uint32_t* from) {
    return Load(reinterpret_cast<const float*>(from));
  }

  SPINDLE_INLINE Operand SplatOperand(const uint32_t* from) {
    float value;
    __builtin_memcpy(&value, from, sizeof(value));
    return Splat(value);
  }

  SPINDLE_INLINE F32x16 Step(F32x16 sum, Operand a, Operand b) { return MulAdd(a, b, sum); }
};

#if defined(__AVX512BF16__)

struct PairOp {
  static constexpr bool kPairs = true;
  using Operand = __m512bh;

  SPINDLE_INLINE Operand LoadOperand(const uint32_t* from) {
    return std::bit_cast<__m512bh>(_mm512_loadu_si512(from));
  }

  SPINDLE_INLINE Operand SplatOperand(const uint32_t* from) {
    return std::bit_cast<__m512bh>(_mm512_set1_epi32(static_cast<int32_t>(*from)));
  }

  SPINDLE_INLINE F32x16 Step(F32x16 sum, Operand a, Operand b) {
    return _mm512_dpbf16_ps(sum, a, b);
  }
};

using Bf16Op = PairOp;
inline constexpr size_t kBlockVectors =
    4;  // 4 × 6 sums, 4 operands and a broadcast in 32 registers
inline constexpr size_t kBlockRows = 6;

#else

using Bf16Op = FloatOp;                     // bf16 values widened to fp32
inline constexpr size_t kBlockVectors = 1;  // a vector is 2 or 4 registers of 16
#if defined(__AVX2__)
inline constexpr size_t kBlockRows = 6;
#else
inline constexpr size_t kBlockRows = 2;
#endif

#endif

// Elements d … d + 15 of a row of kF32 or kBF16.
SPINDLE_INLINE F32x16 LoadElements(DType type, const uint8_t* row, uint32_t d) {
  return type == DType::kF32 ? Load(reinterpret_cast<const float*>(row) + d)
                             : LoadBf16(row + 2 * size_t{d});
}

// 16 values rounded to bf16 and widened again.
SPINDLE_INLINE void StoreRounded(uint32_t* to, F32x16 value) {
  uint16_t halves[kLanes];
  StoreBf16(reinterpret_cast<uint8_t*>(halves), value);
  for (uint32_t i = 0; i < kLanes; ++i) {
    to[i] = uint32_t{halves[i]} << 16;
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
