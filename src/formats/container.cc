#include "formats/container.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "base/status_macros.h"

namespace spindle::formats {

const TensorInfo* Container::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void Container::DropCache(const TensorInfo& tensor) const {
  for (const platform::MappedFile& file : files_) {
    const std::span<const uint8_t> bytes = file.bytes();
    if (tensor.bytes.data() >= bytes.data() &&
        tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size()) {
      file.DropCache(static_cast<size_t>(tensor.bytes.data() - bytes.data()), tensor.bytes.size());
      return;
    }
  }
}

absl::StatusOr<std::span<const uint8_t>> Container::Map(const std::string& path) {
  SPINDLE_ASSIGN_OR_RETURN(platform::MappedFile file, platform::MappedFile::Open(path));
  const std::span<const uint8_t> bytes = file.bytes();
  files_.push_back(std::move(file));
  paths_.push_back(path);
  return bytes;
}

absl::Status Container::Add(std::vector<TensorInfo> tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorInfo& tensor : tensors_) {
    names.insert(tensor.name);
  }
  for (const TensorInfo& tensor : tensors) {
    if (names.contains(tensor.name)) {
      return absl::DataLossError(paths_.back() + ": tensor '" + tensor.name +
                                 "' is also in another file of the model");
    }
  }
  std::move(tensors.begin(), tensors.end(), std::back_inserter(tensors_));
  return absl::OkStatus();
}

void Container::FinishTensors() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    by_name_.emplace(tensors_[i].name, i);
  }
}

}  // namespace spindle::formats
