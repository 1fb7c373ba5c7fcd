// Keys of stripes and vectors of indexes for kernel tests. Thread-safety: none needed;
// single-threaded tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernel_cases.h"
#include "kernels/api/index.h"
#include "kernels/codes.h"
#include "support/index_vectors.h"

namespace spindle::kernels {

inline uint32_t Below(std::mt19937& rng, uint32_t n) {
  return static_cast<uint32_t>(rng() % n);
}

// Keys of a stripe in pages, K half then V half.
struct Stripe {
  Stripe(DType kv_type, uint32_t head_dim, uint32_t page_tokens, std::mt19937& rng)
      : type(kv_type),
        row_bytes(RowBytes(kv_type, head_dim)),
        bytes(RandomRows(kv_type, 2 * 64, head_dim, rng)),
        keys{bytes.data(), page_tokens, 2 * page_tokens * row_bytes, head_dim, kv_type} {}

  [[nodiscard]] float At(uint32_t lane, uint32_t d) const {
    const uint8_t* const key = bytes.data() + lane / keys.page_tokens * keys.page_bytes +
                               lane % keys.page_tokens * row_bytes;
    if (type == DType::kF32) {
      float value;
      std::memcpy(&value, key + 4 * size_t{d}, sizeof(value));
      return value;
    }
    uint16_t half;
    std::memcpy(&half, key + 2 * size_t{d}, sizeof(half));
    return Bf16ToFloat(half);
  }

  DType type;
  size_t row_bytes;
  std::vector<uint8_t> bytes;
  StripeKeys keys;
};

// A block to write, with bytes behind it.
class Vectors {
 public:
  explicit Vectors(const VectorBlock& block)
      : block_(block), bytes_(BlockBytes(block) + kBehind, uint8_t{0xBE}) {}

  [[nodiscard]] VectorOut Place(uint32_t idx) { return {block_, bytes_.data(), idx}; }

  [[nodiscard]] double At(uint32_t idx, uint32_t d) const {
    return test::ElementOf(block_, bytes_.data(), idx, d);
  }

  // Of a vector in int8.
  [[nodiscard]] double Scale(uint32_t idx) const {
    return test::ScaleOf(block_, bytes_.data(), idx);
  }

  [[nodiscard]] const std::vector<uint8_t>& bytes() const { return bytes_; }

  [[nodiscard]] bool IsIntactBehind() const {
    return std::all_of(
        bytes_.end() - kBehind, bytes_.end(), [](uint8_t byte) { return byte == 0xBE; });
  }

 private:
  static constexpr int kBehind = 32;
  VectorBlock block_;
  std::vector<uint8_t> bytes_;
};

}  // namespace spindle::kernels
