#include "formats/model_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/status_macros.h"
#include "formats/gguf_file.h"
#include "formats/huggingface_file.h"

namespace spindle::formats {
namespace {

namespace fs = std::filesystem;

// The GGUF model of a folder: "" when there is none. ERRORS: kInvalidArgument when there are
// several.
absl::StatusOr<std::string> FindGguf(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string path = entry->path().string();
    if (entry->path().extension() == ".gguf" &&
        (NumPartsByName(path) == 1 || SplitPartPath(path, 0) == path)) {
      found.push_back(path);
    }
  }
  if (error) {
    return absl::PermissionDeniedError(folder + ": " + error.message());
  }
  if (found.size() > 1) {
    std::sort(found.begin(), found.end());
    return absl::InvalidArgumentError(folder + " holds several GGUF models, name one: " + found[0] +
                                      ", " + found[1] + (found.size() > 2 ? ", ..." : ""));
  }
  return found.empty() ? "" : found[0];
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFile>> ModelFile::Open(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return fs::path(path).extension() == ".safetensors" ? HuggingFaceFile::Open(path)
                                                        : GgufFile::Open(path);
  }
  SPINDLE_ASSIGN_OR_RETURN(const std::string gguf, FindGguf(path));
  if (!gguf.empty() && !fs::exists(fs::path(path) / "config.json", error)) {
    return GgufFile::Open(gguf);
  }
  return HuggingFaceFile::Open(path);
}

std::optional<uint64_t> ModelFile::MetaUint(std::string_view key) const {
  const MetaValue* value = Meta(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (const auto* number = std::get_if<uint64_t>(value)) {
    return *number;
  }
  if (const auto* number = std::get_if<int64_t>(value); number != nullptr && *number >= 0) {
    return static_cast<uint64_t>(*number);
  }
  if (const auto* number = std::get_if<double>(value);
      number != nullptr && *number >= 0 && *number < 0x1p53 && std::floor(*number) == *number) {
    return static_cast<uint64_t>(*number);
  }
  return std::nullopt;
}

std::optional<double> ModelFile::MetaFloat(std::string_view key) const {
  const MetaValue* value = Meta(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (const auto* number = std::get_if<double>(value)) {
    return *number;
  }
  if (const auto* number = std::get_if<uint64_t>(value)) {
    return static_cast<double>(*number);
  }
  if (const auto* number = std::get_if<int64_t>(value)) {
    return static_cast<double>(*number);
  }
  return std::nullopt;
}

std::optional<std::string_view> ModelFile::MetaString(std::string_view key) const {
  const MetaValue* value = Meta(key);
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  return text == nullptr ? std::nullopt : std::optional<std::string_view>(*text);
}

}  // namespace spindle::formats
