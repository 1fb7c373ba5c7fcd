#include "formats/gguf_file.h"

#include <algorithm>
#include <cctype>

#include "base/status_macros.h"
#include "formats/gguf_parser.h"

namespace spindle::formats {
namespace {

constexpr std::string_view kSuffix = ".gguf";
constexpr size_t kDigits = 5;
// "-00001-of-00003.gguf"
constexpr size_t kTailLength = 1 + kDigits + 4 + kDigits + kSuffix.size();

bool AllDigits(std::string_view text) {
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) {
      return false;
    }
  }
  return true;
}

// "-NNNNN-of-MMMMM.gguf" at the end of a path, or "".
std::string_view SplitTail(std::string_view path) {
  if (path.size() <= kTailLength) {
    return "";
  }
  const std::string_view tail = path.substr(path.size() - kTailLength);
  const bool matches = tail[0] == '-' && AllDigits(tail.substr(1, kDigits)) &&
                       tail.substr(1 + kDigits, 4) == "-of-" &&
                       AllDigits(tail.substr(5 + kDigits, kDigits)) && tail.ends_with(kSuffix);
  return matches ? tail : "";
}

const MetaValue* FindMeta(std::span<const std::pair<std::string, MetaValue>> meta,
                          std::string_view key) {
  for (const auto& [name, value] : meta) {
    if (name == key) {
      return &value;
    }
  }
  return nullptr;
}

// Non-negative integer of a part's metadata; nullopt when absent or of another type.
std::optional<uint64_t> UnsignedMeta(std::span<const std::pair<std::string, MetaValue>> meta,
                                     std::string_view key) {
  const MetaValue* value = FindMeta(meta, key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (const auto* number = std::get_if<uint64_t>(value)) {
    return *number;
  }
  const auto* number = std::get_if<int64_t>(value);
  return number != nullptr && *number >= 0 ? std::optional(static_cast<uint64_t>(*number))
                                           : std::nullopt;
}

}  // namespace

uint64_t NumPartsByName(const std::string& path) {
  const std::string_view tail = SplitTail(path);
  return tail.empty() ? 1 : std::stoull(std::string(tail.substr(5 + kDigits, kDigits)));
}

std::string SplitPartPath(const std::string& path, uint64_t part) {
  const std::string_view tail = SplitTail(path);
  if (tail.empty()) {
    return "";
  }
  std::string ordinal = std::to_string(part + 1);
  ordinal.insert(0, kDigits - std::min(kDigits, ordinal.size()), '0');
  return path.substr(0, path.size() - kTailLength) + "-" + ordinal +
         std::string(tail.substr(1 + kDigits));
}

absl::StatusOr<std::unique_ptr<ModelFile>> GgufFile::Open(const std::string& path) {
  auto model = std::make_unique<GgufFile>();
  const uint64_t num_parts = NumPartsByName(path);
  if (num_parts == 1) {
    SPINDLE_RETURN_IF_ERROR(model->AddPart(path, 0, 1));
  }
  for (uint64_t part = 0; num_parts > 1 && part < num_parts; ++part) {
    SPINDLE_RETURN_IF_ERROR(model->AddPart(SplitPartPath(path, part), part, num_parts));
  }
  const std::optional<uint64_t> expected = UnsignedMeta(model->meta_, "split.tensors.count");
  if (num_parts > 1 && expected && *expected != model->tensors().size()) {
    return absl::DataLossError(path + ": split.tensors.count is " + std::to_string(*expected) +
                               ", the parts hold " + std::to_string(model->tensors().size()));
  }
  if (num_parts == 0) {
    return absl::DataLossError(path + ": a split of 0 parts");
  }
  model->FinishTensors();
  for (size_t i = 0; i < model->meta_.size(); ++i) {
    model->by_key_.emplace(model->meta_[i].first, i);
  }
  return model;
}

absl::Status GgufFile::AddPart(const std::string& path, uint64_t part, uint64_t num_parts) {
  SPINDLE_ASSIGN_OR_RETURN(const std::span<const uint8_t> bytes, Map(path));
  SPINDLE_ASSIGN_OR_RETURN(GgufContents contents, ParseGguf(bytes, path));
  const uint64_t count = UnsignedMeta(contents.meta, "split.count").value_or(1);
  if (std::max<uint64_t>(count, 1) != num_parts) {
    return absl::DataLossError(path + ": split.count is " + std::to_string(count) +
                               ", the file name says " + std::to_string(num_parts));
  }
  if (num_parts > 1 && UnsignedMeta(contents.meta, "split.no").value_or(num_parts) != part) {
    return absl::DataLossError(path + ": split.no does not match the file name");
  }
  if (part == 0) {
    meta_ = std::move(contents.meta);
  }
  return Add(std::move(contents.tensors));
}

const MetaValue* GgufFile::Meta(std::string_view key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &meta_[found->second].second;
}

}  // namespace spindle::formats
