// Checks that all containers share: sizes without overflow, tensors inside their data area and
// apart from each other. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "formats/model_file.h"

namespace spindle::formats {

// a · b, or nullopt on overflow.
[[nodiscard]] std::optional<uint64_t> CheckedMultiply(uint64_t a, uint64_t b);

// Bytes of a tensor. `where` starts the message ("file: tensor 'name'").
// ERRORS: kDataLoss (no dimension, an empty one, a row that is not whole blocks, more than 2^63
// bytes).
[[nodiscard]] absl::StatusOr<uint64_t> TensorBytes(DType type,
                                                   std::span<const uint64_t> shape,
                                                   const std::string& where);

// A tensor's place in a data area, by index in the caller's list.
struct TensorExtent {
  uint64_t begin;
  uint64_t end;
  size_t tensor;
};

// Sorts by place and checks that no two overlap. ERRORS: kDataLoss naming both tensors.
[[nodiscard]] absl::Status SortAndCheckOverlap(std::vector<TensorExtent>& extents,
                                               std::span<const TensorInfo> tensors,
                                               const std::string& label);

}  // namespace spindle::formats
