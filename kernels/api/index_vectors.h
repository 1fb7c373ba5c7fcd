// How the vectors of an index are stored: bf16 elements, or int8 codes with one scale per vector,
// which take half the memory. Thread-safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spindle::kernels {

inline constexpr uint32_t kMaxIndexDim = 512;

enum class IndexType : uint8_t {
  kBf16,
  // Element = code · scale, codes in [-127, 127], the scale a bf16: its 8 significant bits and the
  // code's 7 make a product that fp32 holds exactly, so the element is no matter of rounding.
  kInt8,
};

inline constexpr float kMaxIndexCode = 127.0F;

// `count` vectors of `dim` elements, one after the other; behind int8 codes the scales of all.
struct VectorBlock {
  IndexType type = IndexType::kBf16;
  uint32_t count = 0;
  uint32_t dim = 0;  // a multiple of 16 up to kMaxIndexDim
};

// One vector of a block, to be written.
struct VectorOut {
  VectorBlock block;
  uint8_t* data;  // of the block; [BlockBytes]
  uint32_t idx;   // < block.count
};

// From one vector's elements to the next one's.
[[nodiscard]] static constexpr size_t VectorBytes(const VectorBlock& block) {
  return size_t{block.dim} * (block.type == IndexType::kInt8 ? sizeof(int8_t) : sizeof(uint16_t));
}

// From the beginning of a block to its scales [count] bf16, if it has any.
[[nodiscard]] static constexpr size_t ScalesOffset(const VectorBlock& block) {
  return block.count * VectorBytes(block);
}

// A multiple of 16.
[[nodiscard]] static constexpr size_t BlockBytes(const VectorBlock& block) {
  const size_t scales = block.type == IndexType::kInt8 ? block.count * sizeof(uint16_t) : 0;
  return (ScalesOffset(block) + scales + 15) / 16 * 16;
}

[[nodiscard]] static constexpr bool IsReadable(const VectorBlock& block) {
  return block.count > 0 && block.dim > 0 && block.dim % 16 == 0 && block.dim <= kMaxIndexDim;
}

}  // namespace spindle::kernels
