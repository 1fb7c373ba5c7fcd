// One safetensors file by itself: tensors and the texts of its metadata, for weights that come
// beside a model. Thread-safety: immutable after Open; readable from any thread. Spans live as long
// as the object.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "formats/model_file.h"
#include "platform/mapped_file.h"

namespace spindle::formats {

// Of gates in a model folder: no weights of the model.
inline constexpr std::string_view kGatesFileName = "gates.safetensors";

class TensorFile {
 public:
  // ERRORS: kNotFound, kPermissionDenied; kDataLoss (damaged); kUnimplemented (an element type that
  // is not F32, F16 or BF16).
  static absl::StatusOr<std::unique_ptr<TensorFile>> Open(const std::string& path);

  [[nodiscard]] size_t num_tensors() const { return tensors_.size(); }

  // Null when absent.
  [[nodiscard]] const TensorInfo* Find(const std::string& name) const;

  // Nothing when absent.
  [[nodiscard]] std::optional<std::string_view> Metadata(const std::string& key) const;

 private:
  explicit TensorFile(platform::MappedFile file) : file_(std::move(file)) {}

  platform::MappedFile file_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace spindle::formats
