// Element and block-quantised storage types of tensors, with their sizes.
// Thread-safety: constants only. The functions are constexpr and `static`: per-ISA kernel objects
// include this header, and an inline function with external linkage could be kept in its AVX-512
// form for every caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spindle {

// Values are stable within the project only; file formats map their own numbers to these.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

// Storage shape of a type: `block_elements` consecutive elements of a row occupy `block_bytes`.
struct DTypeInfo {
  std::string_view name;
  uint32_t block_elements;
  uint32_t block_bytes;
};

// Sizes follow the GGUF definitions: scale and minimum are fp16 for the 32-element types; the K
// types are super-blocks of 256 with 6-bit or 8-bit sub-scales.
static constexpr DTypeInfo Describe(DType type) {
  switch (type) {
    case DType::kF32:
      return {"F32", 1, 4};
    case DType::kF16:
      return {"F16", 1, 2};
    case DType::kBF16:
      return {"BF16", 1, 2};
    case DType::kQ8_0:
      return {"Q8_0", 32, 34};
    case DType::kQ4_0:
      return {"Q4_0", 32, 18};
    case DType::kQ4_1:
      return {"Q4_1", 32, 20};
    case DType::kQ5_0:
      return {"Q5_0", 32, 22};
    case DType::kQ5_1:
      return {"Q5_1", 32, 24};
    case DType::kQ4_K:
      return {"Q4_K", 256, 144};
    case DType::kQ5_K:
      return {"Q5_K", 256, 176};
    case DType::kQ6_K:
      return {"Q6_K", 256, 210};
  }
  return {"?", 1, 0};
}

// Bytes of a row of `elements` elements. REQUIRES: elements is a multiple of the type's block.
static constexpr size_t RowBytes(DType type, size_t elements) {
  const DTypeInfo info = Describe(type);
  return elements / info.block_elements * info.block_bytes;
}

}  // namespace spindle
