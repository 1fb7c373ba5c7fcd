// Model files as named tensors and metadata: GGUF v2/v3 (single or split) and Hugging Face folders
// or safetensors. Files are memory-mapped and every offset and size is checked before use.
// Thread-safety: immutable after Open; readable from any thread. Spans live as long as the object.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"

namespace spindle::formats {

enum class FileKind : uint8_t { kGguf, kHuggingFace };

struct TensorInfo {
  std::string name;
  DType type = DType::kF32;
  std::vector<uint64_t> shape;     // outermost first: a weight is [outputs, inputs] in both formats
  std::span<const uint8_t> bytes;  // row-major
};

// A GGUF value; arrays of numbers are widened.
using MetaValue = std::variant<bool,
                               int64_t,
                               uint64_t,
                               double,
                               std::string,
                               std::vector<int64_t>,
                               std::vector<double>,
                               std::vector<std::string>>;

class ModelFile {
 public:
  // `path`: a .gguf file (any part of a split), a .safetensors file beside its config.json, or a
  // folder holding either. ERRORS: kNotFound, kPermissionDenied; kUnimplemented (unknown version or
  // tensor type, named);
  //         kDataLoss (damaged: message names the field or tensor).
  static absl::StatusOr<std::unique_ptr<ModelFile>> Open(const std::string& path);
  virtual ~ModelFile() = default;

  [[nodiscard]] virtual FileKind kind() const = 0;
  [[nodiscard]] virtual std::span<const TensorInfo> tensors() const = 0;
  // Null when absent. Cost: O(1).
  [[nodiscard]] virtual const TensorInfo* Find(std::string_view name) const = 0;

  // GGUF metadata; null when absent or for Hugging Face folders.
  [[nodiscard]] virtual const MetaValue* Meta(std::string_view key) const = 0;
  // All keys with values, file order (inspect); empty for Hugging Face folders.
  [[nodiscard]] virtual std::span<const std::pair<std::string, MetaValue>> AllMeta() const = 0;

  // Text of a side file of a Hugging Face folder ("config.json", "tokenizer.json",
  // "tokenizer_config.json", "generation_config.json", "chat_template.jinja"); nullopt when absent
  // or for GGUF.
  [[nodiscard]] virtual std::optional<std::string> SideFile(std::string_view name) const = 0;

  // Lets the kernel drop the mapped pages of a tensor that has been copied.
  virtual void DropCache(const TensorInfo& tensor) const = 0;

  // Paths of the files that make up the model.
  [[nodiscard]] virtual std::span<const std::string> paths() const = 0;

  // Typed access to a GGUF key: integers of either sign and floats convert when exact.
  [[nodiscard]] std::optional<uint64_t> MetaUint(std::string_view key) const;
  [[nodiscard]] std::optional<double> MetaFloat(std::string_view key) const;
  [[nodiscard]] std::optional<std::string_view> MetaString(std::string_view key) const;
};

}  // namespace spindle::formats
