// Bounds-checked little-endian reading of a byte span.
// Thread-safety: thread-compatible. Borrows the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace spindle::formats {

class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  [[nodiscard]] size_t position() const { return position_; }

  [[nodiscard]] size_t remaining() const { return bytes_.size() - position_; }

  // Next value, or nullopt (nothing consumed) when the bytes end before it does.
  template <typename T>
  requires std::is_trivially_copyable_v<T>

  [[nodiscard]] std::optional<T> Read() {
    if (remaining() < sizeof(T)) {
      return std::nullopt;
    }
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  // `count` raw bytes as text.
  [[nodiscard]] std::optional<std::string_view> ReadText(uint64_t count) {
    if (count > remaining()) {
      return std::nullopt;
    }
    const auto* begin = reinterpret_cast<const char*>(bytes_.data() + position_);
    position_ += static_cast<size_t>(count);
    return std::string_view(begin, static_cast<size_t>(count));
  }

  // u64 length, then the bytes: a GGUF string.
  [[nodiscard]] std::optional<std::string_view> ReadString() {
    const size_t start = position_;
    if (const std::optional<uint64_t> length = Read<uint64_t>()) {
      if (const std::optional<std::string_view> text = ReadText(*length)) {
        return text;
      }
    }
    position_ = start;
    return std::nullopt;
  }

 private:
  std::span<const uint8_t> bytes_;
  size_t position_ = 0;
};

}  // namespace spindle::formats
