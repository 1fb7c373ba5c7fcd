#include "formats/huggingface_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "base/read_file.h"
#include "base/status_macros.h"
#include "formats/safetensors_parser.h"
#include "formats/tensor_file.h"

namespace spindle::formats {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
// tokenizer.json of the largest vocabularies has about 35 MB.
constexpr uint64_t kMaxSideFileBytes = uint64_t{256} << 20;

// A file name that stays inside the folder.
bool IsPlainName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos;
}

// tensor name → file name of an index.
absl::StatusOr<std::map<std::string, std::string>> ParseIndex(const std::string& text,
                                                              const std::string& path) {
  const Json index = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::DataLossError(path + ": no weight_map");
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string() || !IsPlainName(file.get_ref<const std::string&>())) {
      return absl::DataLossError(path + ": tensor '" + tensor + "' is mapped to no file name");
    }
    weight_map.emplace(tensor, file.get<std::string>());
  }
  if (weight_map.empty()) {
    return absl::DataLossError(path + ": empty weight_map");
  }
  return weight_map;
}

// The single safetensors file of a folder. ERRORS: kNotFound, kInvalidArgument (several, no index).
absl::StatusOr<std::string> SingleFile(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().extension() == ".safetensors" && entry->path().filename() != kGatesFileName) {
      found.push_back(entry->path().filename().string());
    }
  }
  if (error) {
    return absl::PermissionDeniedError(folder.string() + ": " + error.message());
  }
  if (found.empty()) {
    return absl::NotFoundError(folder.string() + ": holds neither .gguf nor .safetensors files");
  }
  if (std::find(found.begin(), found.end(), "model.safetensors") != found.end()) {
    return "model.safetensors";
  }
  if (found.size() > 1) {
    return absl::InvalidArgumentError(folder.string() + ": several .safetensors files but no " +
                                      std::string(kIndexName));
  }
  return found[0];
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFile>> HuggingFaceFile::Open(const std::string& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  if (!is_folder && !fs::exists(path, error)) {
    return absl::NotFoundError(path + ": no such file or folder");
  }
  const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
  auto model = std::make_unique<HuggingFaceFile>();
  model->folder_ = folder.empty() ? "." : folder.string();
  if (!fs::exists(fs::path(model->folder_) / "config.json", error)) {
    return absl::NotFoundError(model->folder_ + ": no config.json");
  }
  std::map<std::string, std::string> weight_map;
  std::set<std::string> names;
  const std::optional<std::string> index = model->SideFile(kIndexName);
  const bool whole_model = is_folder || fs::path(path).filename() != "model.safetensors";
  if (index && whole_model) {
    const std::string index_path = (folder / kIndexName).string();
    SPINDLE_ASSIGN_OR_RETURN(weight_map, ParseIndex(*index, index_path));
    for (const auto& [tensor, file] : weight_map) {
      names.insert(file);
    }
  } else if (is_folder) {
    SPINDLE_ASSIGN_OR_RETURN(std::string name, SingleFile(folder));
    names.insert(std::move(name));
  } else {
    names.insert(fs::path(path).filename().string());
  }
  for (const std::string& name : names) {
    const std::string file_path = (fs::path(model->folder_) / name).string();
    SPINDLE_ASSIGN_OR_RETURN(const std::span<const uint8_t> bytes, model->Map(file_path));
    SPINDLE_ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, ParseSafetensors(bytes, file_path));
    SPINDLE_RETURN_IF_ERROR(model->Add(std::move(tensors)));
  }
  model->FinishTensors();
  for (const auto& [tensor, file] : weight_map) {
    if (model->Find(tensor) == nullptr) {
      return absl::DataLossError(model->folder_ + ": tensor '" + tensor +
                                 "' of the index is not in " + file);
    }
  }
  return model;
}

std::optional<std::string> HuggingFaceFile::SideFile(std::string_view name) const {
  if (!IsPlainName(name)) {
    return std::nullopt;
  }
  absl::StatusOr<std::string> text =
      ReadFile((fs::path(folder_) / name).string(), kMaxSideFileBytes);
  return text.ok() ? std::optional<std::string>(*std::move(text)) : std::nullopt;
}

}  // namespace spindle::formats
