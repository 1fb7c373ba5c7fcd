// Builds GGUF bytes for tests, right or deliberately wrong.
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spindle::test {

class GgufBuilder {
 public:
  static constexpr uint32_t kTypeUint32 = 4;
  static constexpr uint32_t kTypeFloat32 = 6;
  static constexpr uint32_t kTypeString = 8;
  static constexpr uint32_t kTypeArray = 9;
  static constexpr uint32_t kTensorF32 = 0;

  template <typename T>
  static void Put(std::vector<uint8_t>* to, T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    to->insert(to->end(), bytes, bytes + sizeof(T));
  }

  static void PutString(std::vector<uint8_t>* to, std::string_view text) {
    Put<uint64_t>(to, text.size());
    to->insert(to->end(), text.begin(), text.end());
  }

  // One metadata entry with its value already encoded.
  GgufBuilder& Entry(std::string_view key, uint32_t type, std::span<const uint8_t> value) {
    PutString(&meta_, key);
    Put(&meta_, type);
    meta_.insert(meta_.end(), value.begin(), value.end());
    ++num_entries_;
    return *this;
  }

  GgufBuilder& Text(std::string_view key, std::string_view value) {
    std::vector<uint8_t> bytes;
    PutString(&bytes, value);
    return Entry(key, kTypeString, bytes);
  }

  GgufBuilder& Uint(std::string_view key, uint32_t value) {
    std::vector<uint8_t> bytes;
    Put(&bytes, value);
    return Entry(key, kTypeUint32, bytes);
  }

  GgufBuilder& Float(std::string_view key, float value) {
    std::vector<uint8_t> bytes;
    Put(&bytes, value);
    return Entry(key, kTypeFloat32, bytes);
  }

  // A table entry; `shape` is innermost first, as files have it.
  GgufBuilder& TensorAt(std::string_view name,
                        const std::vector<uint64_t>& shape,
                        uint32_t type,
                        uint64_t offset) {
    PutString(&table_, name);
    Put<uint32_t>(&table_, static_cast<uint32_t>(shape.size()));
    for (const uint64_t dimension : shape) {
      Put(&table_, dimension);
    }
    Put(&table_, type);
    Put(&table_, offset);
    ++num_tensors_;
    return *this;
  }

  // An F32 tensor behind the ones before it, every element = `value`.
  GgufBuilder& Tensor(std::string_view name,
                      const std::vector<uint64_t>& shape,
                      float value = 1.0F) {
    uint64_t elements = 1;
    for (const uint64_t dimension : shape) {
      elements *= dimension;
    }
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
    TensorAt(name, shape, kTensorF32, data_.size());
    for (uint64_t i = 0; i < elements; ++i) {
      Put(&data_, value);
    }
    return *this;
  }

  GgufBuilder& Data(size_t bytes) {
    data_.resize(data_.size() + bytes);
    return *this;
  }

  // Overrides of the preamble.
  GgufBuilder& Version(uint32_t version) {
    version_ = version;
    return *this;
  }

  GgufBuilder& Alignment(uint32_t alignment) {
    alignment_ = alignment;
    return Uint("general.alignment", alignment);
  }

  GgufBuilder& TensorCount(uint64_t count) {
    num_tensors_ = count;
    return *this;
  }

  GgufBuilder& EntryCount(uint64_t count) {
    num_entries_ = count;
    return *this;
  }

  [[nodiscard]] std::vector<uint8_t> Build() const {
    std::vector<uint8_t> file = {'G', 'G', 'U', 'F'};
    Put(&file, version_);
    Put(&file, num_tensors_);
    Put(&file, num_entries_);
    file.insert(file.end(), meta_.begin(), meta_.end());
    file.insert(file.end(), table_.begin(), table_.end());
    if (!data_.empty()) {
      file.resize((file.size() + alignment_ - 1) / alignment_ * alignment_);
      file.insert(file.end(), data_.begin(), data_.end());
    }
    return file;
  }

 private:
  uint32_t version_ = 3;
  uint64_t alignment_ = 32;
  uint64_t num_entries_ = 0;
  uint64_t num_tensors_ = 0;
  std::vector<uint8_t> meta_;
  std::vector<uint8_t> table_;
  std::vector<uint8_t> data_;
};

}  // namespace spindle::test
