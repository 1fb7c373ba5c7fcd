// Reads the header of one GGUF file (versions 2 and 3, little-endian) and checks every count,
// length and offset against the bytes that are there. Memory use is bounded by a small multiple of
// the header's own size. Thread-safety: pure function. The result borrows the bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/model_file.h"

namespace spindle::formats {

struct GgufContents {
  std::vector<std::pair<std::string, MetaValue>> meta;  // file order, keys distinct
  std::vector<TensorInfo> tensors;  // file order, names distinct; bytes inside the span
};

//   label  names the file in messages
//   ERRORS: kDataLoss (damaged), kUnimplemented (version, byte order, value or tensor type)
[[nodiscard]] absl::StatusOr<GgufContents> ParseGguf(std::span<const uint8_t> file,
                                                     const std::string& label);

}  // namespace spindle::formats
