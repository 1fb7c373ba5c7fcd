// Common part of the two kinds of model files: mapped files, the tensors of all of them, look-up by
// name. Thread-safety: immutable after opening.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/model_file.h"
#include "platform/mapped_file.h"

namespace spindle::formats {

class Container : public ModelFile {
 public:
  [[nodiscard]] std::span<const TensorInfo> tensors() const final { return tensors_; }

  [[nodiscard]] const TensorInfo* Find(std::string_view name) const final;
  void DropCache(const TensorInfo& tensor) const final;

  [[nodiscard]] std::span<const std::string> paths() const final { return paths_; }

 protected:
  // Maps one more file; the bytes live as long as the object.
  absl::StatusOr<std::span<const uint8_t>> Map(const std::string& path);
  // Appends tensors. ERRORS: kDataLoss (a name that is there already).
  absl::Status Add(std::vector<TensorInfo> tensors);
  // Builds the look-up; called once, after the last Add.
  void FinishTensors();

 private:
  std::vector<platform::MappedFile> files_;
  std::vector<std::string> paths_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

}  // namespace spindle::formats
