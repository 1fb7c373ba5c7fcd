#include "formats/tensor_file.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "formats/safetensors_parser.h"

namespace spindle::formats {

absl::StatusOr<std::unique_ptr<TensorFile>> TensorFile::Open(const std::string& path) {
  SPINDLE_ASSIGN_OR_RETURN(platform::MappedFile mapped, platform::MappedFile::Open(path));
  auto file = std::unique_ptr<TensorFile>(new TensorFile(std::move(mapped)));
  SPINDLE_ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors,
                           ParseSafetensors(file->file_.bytes(), path, &file->metadata_));
  for (TensorInfo& tensor : tensors) {
    std::string name = tensor.name;
    file->tensors_.emplace(std::move(name), std::move(tensor));
  }
  return file;
}

const TensorInfo* TensorFile::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::optional<std::string_view> TensorFile::Metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? std::nullopt : std::optional<std::string_view>(found->second);
}

}  // namespace spindle::formats
