// A Hugging Face model folder: config.json and one or several safetensors files
// (model.safetensors.index.json). Thread-safety: immutable after Open; SideFile reads from disk.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "formats/container.h"

namespace spindle::formats {

class HuggingFaceFile final : public Container {
 public:
  // `path`: the folder, or a .safetensors file in it (a shard stands for the whole model).
  // ERRORS: those of ModelFile::Open.
  static absl::StatusOr<std::unique_ptr<ModelFile>> Open(const std::string& path);

  [[nodiscard]] FileKind kind() const override { return FileKind::kHuggingFace; }

  [[nodiscard]] const MetaValue* Meta(std::string_view) const override { return nullptr; }

  [[nodiscard]] std::span<const std::pair<std::string, MetaValue>> AllMeta() const override {
    return {};
  }

  [[nodiscard]] std::optional<std::string> SideFile(std::string_view name) const override;

 private:
  std::string folder_;
};

}  // namespace spindle::formats
