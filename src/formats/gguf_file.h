// A GGUF model of one or several files (name-00001-of-00003.gguf).
// Thread-safety: immutable after Open.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/container.h"

namespace spindle::formats {

class GgufFile final : public Container {
 public:
  // `path`: the file, or any part of a split one; the other parts lie beside it.
  // ERRORS: those of ModelFile::Open.
  static absl::StatusOr<std::unique_ptr<ModelFile>> Open(const std::string& path);

  [[nodiscard]] FileKind kind() const override { return FileKind::kGguf; }

  [[nodiscard]] const MetaValue* Meta(std::string_view key) const override;

  [[nodiscard]] std::span<const std::pair<std::string, MetaValue>> AllMeta() const override {
    return meta_;
  }

  [[nodiscard]] std::optional<std::string> SideFile(std::string_view) const override {
    return std::nullopt;
  }

 private:
  // Reads part `part` of `num_parts` and adds its tensors; part 0 gives the metadata.
  absl::Status AddPart(const std::string& path, uint64_t part, uint64_t num_parts);

  std::vector<std::pair<std::string, MetaValue>> meta_;
  std::unordered_map<std::string_view, size_t> by_key_;
};

// Path of part `part` (from 0) of a split file, or "" when `path` does not end in
// "-NNNNN-of-MMMMM.gguf".
[[nodiscard]] std::string SplitPartPath(const std::string& path, uint64_t part);
// MMMMM of such a name, 1 for any other.
[[nodiscard]] uint64_t NumPartsByName(const std::string& path);

}  // namespace spindle::formats
