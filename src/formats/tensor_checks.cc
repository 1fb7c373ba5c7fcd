#include "formats/tensor_checks.h"

#include <algorithm>
#include <limits>

namespace spindle::formats {

std::optional<uint64_t> CheckedMultiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    return std::nullopt;
  }
  return product;
}

absl::StatusOr<uint64_t> TensorBytes(DType type,
                                     std::span<const uint64_t> shape,
                                     const std::string& where) {
  const DTypeInfo info = Describe(type);
  if (shape.empty()) {
    return absl::DataLossError(where + " has no dimensions");
  }
  const uint64_t row = shape.back();
  if (row == 0 || row % info.block_elements != 0) {
    return absl::DataLossError(where + ": rows of " + std::to_string(row) +
                               " elements are not whole " + std::string(info.name) + " blocks of " +
                               std::to_string(info.block_elements));
  }
  std::optional<uint64_t> bytes = CheckedMultiply(row / info.block_elements, info.block_bytes);
  for (const uint64_t dimension : shape.first(shape.size() - 1)) {
    if (dimension == 0) {
      return absl::DataLossError(where + " has an empty dimension");
    }
    bytes = bytes ? CheckedMultiply(*bytes, dimension) : std::nullopt;
  }
  if (!bytes || *bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::DataLossError(where + ": its dimensions overflow");
  }
  return *bytes;
}

absl::Status SortAndCheckOverlap(std::vector<TensorExtent>& extents,
                                 std::span<const TensorInfo> tensors,
                                 const std::string& label) {
  std::sort(extents.begin(), extents.end(), [](const TensorExtent& a, const TensorExtent& b) {
    return a.begin < b.begin;
  });
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) {
      return absl::DataLossError(label + ": tensors '" + tensors[extents[i - 1].tensor].name +
                                 "' and '" + tensors[extents[i].tensor].name + "' overlap");
    }
  }
  return absl::OkStatus();
}

}  // namespace spindle::formats
