// Reads the header of one safetensors file: u64 length, a JSON object of tensors, then their bytes
// without holes. The JSON is read event by event; memory use is bounded by a small multiple of the
// header's size. Thread-safety: pure function. The result borrows the bytes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/model_file.h"

namespace spindle::formats {

//   label     names the file in messages
//   metadata  null, or where the texts of the header's __metadata__ go
//   Returns tensors in the order of their bytes, names distinct.
//   ERRORS: kDataLoss (damaged), kUnimplemented (an element type that is not F32, F16 or BF16)
[[nodiscard]] absl::StatusOr<std::vector<TensorInfo>> ParseSafetensors(
    std::span<const uint8_t> file,
    const std::string& label,
    std::map<std::string, std::string>* metadata = nullptr);

}  // namespace spindle::formats
