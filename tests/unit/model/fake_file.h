// A model file in memory, for tests of configuration readers.
// Thread-safety: thread-compatible.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/model_file.h"

namespace spindle::test {

class FakeFile final : public formats::ModelFile {
 public:
  explicit FakeFile(formats::FileKind kind) : kind_(kind) {}

  FakeFile& Set(const std::string& key, formats::MetaValue value) {
    meta_[key] = std::move(value);
    return *this;
  }

  // `values` live as long as the object.
  FakeFile& Tensor(const std::string& name,
                   std::vector<uint64_t> shape,
                   std::vector<float> values = {}) {
    const std::vector<float>& kept = data_[name] = std::move(values);
    const std::span<const uint8_t> bytes{reinterpret_cast<const uint8_t*>(kept.data()),
                                         kept.size() * sizeof(float)};
    tensors_.push_back({name, DType::kF32, std::move(shape), bytes});
    return *this;
  }

  FakeFile& Config(std::string json) {
    config_ = std::move(json);
    return *this;
  }

  [[nodiscard]] formats::FileKind kind() const override { return kind_; }

  [[nodiscard]] std::span<const formats::TensorInfo> tensors() const override { return tensors_; }

  [[nodiscard]] const formats::TensorInfo* Find(std::string_view name) const override {
    for (const formats::TensorInfo& tensor : tensors_) {
      if (tensor.name == name) {
        return &tensor;
      }
    }
    return nullptr;
  }

  [[nodiscard]] const formats::MetaValue* Meta(std::string_view key) const override {
    const auto found = meta_.find(std::string(key));
    return found == meta_.end() ? nullptr : &found->second;
  }

  [[nodiscard]] std::span<const std::pair<std::string, formats::MetaValue>> AllMeta()
      const override {
    return {};
  }

  [[nodiscard]] std::optional<std::string> SideFile(std::string_view name) const override {
    return name == "config.json" ? std::optional(config_) : std::nullopt;
  }

  void DropCache(const formats::TensorInfo&) const override {}

  [[nodiscard]] std::span<const std::string> paths() const override { return {}; }

 private:
  formats::FileKind kind_;
  std::map<std::string, formats::MetaValue> meta_;
  std::map<std::string, std::vector<float>> data_;
  std::vector<formats::TensorInfo> tensors_;
  std::string config_;
};

}  // namespace spindle::test
