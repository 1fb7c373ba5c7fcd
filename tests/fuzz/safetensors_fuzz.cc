// Any bytes as a safetensors file: refused or accepted with every tensor inside the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status_macros.h"
#include "formats/safetensors_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Exactly sized, so that the sanitizer sees a read one byte beyond the end.
  const auto copy = std::make_unique<uint8_t[]>(size);
  std::copy(data, data + size, copy.get());
  const auto tensors = spindle::formats::ParseSafetensors({copy.get(), size}, "input");
  if (tensors.ok()) {
    for (const spindle::formats::TensorInfo& tensor : *tensors) {
      SPINDLE_CHECK(!tensor.bytes.empty());
      SPINDLE_CHECK(tensor.bytes.data() >= copy.get() &&
                    tensor.bytes.data() + tensor.bytes.size() <= copy.get() + size);
    }
  }
  return 0;
}
