// Little-endian numbers and byte arrays at fixed offsets. Thread-safety: pure functions.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/status_macros.h"

namespace spindle::kv::disk {

static_assert(std::endian::native == std::endian::little, "the disk formats are little-endian");

// REQUIRES: offset + size of the value is inside the bytes.
template <typename T>
void PutAt(std::span<uint8_t> bytes, size_t offset, const T& value) {
  static_assert(std::has_unique_object_representations_v<T>);
  SPINDLE_DCHECK(offset + sizeof(T) <= bytes.size());
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <typename T>
[[nodiscard]] T GetAt(std::span<const uint8_t> bytes, size_t offset) {
  static_assert(std::has_unique_object_representations_v<T>);
  SPINDLE_DCHECK(offset + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

using Magic = std::array<char, 8>;

[[nodiscard]] constexpr Magic MakeMagic(const char (&text)[9]) {
  Magic magic{};
  for (size_t i = 0; i < magic.size(); ++i) {
    magic[i] = text[i];
  }
  return magic;
}

}  // namespace spindle::kv::disk
