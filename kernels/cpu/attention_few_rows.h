// Products of attention for few rows, as decoding has them: straight from bf16 K and V where they
// lie, since packing a tile first costs more than such a product. Element by element the same
// operations in the same order as over packed tiles, so the same bits; lanes that nobody sees would
// add zeros and are left out (which may keep the sign of a zero, as no output does).
//
//   ScoreRows<rows>       scores of 64 keys
//   AccumulateRows<rows>  the values of 64 tokens, weighted
//   ForRows               calls something with the number of rows, 1 … kFewRows, as a constant
//
// Thread-safety: pure functions over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd.h"

#if defined(__AVX512BF16__)
#include "kernels/cpu/attention_few_rows_avx512.h"
#else
#include "kernels/cpu/attention_few_rows_avx2.h"
#endif

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

inline constexpr uint32_t kFewRows = 8;

template <typename Product, size_t kRows = kFewRows>
SPINDLE_INLINE void ForRows(uint32_t num_rows, const Product& product) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      product.template operator()<kRows>();
    } else {
      ForRows<Product, kRows - 1>(num_rows, product);
    }
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
