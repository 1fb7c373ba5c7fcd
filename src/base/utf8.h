// UTF-8 in bytes that may be cut or damaged, without exceptions. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace spindle {

// U+FFFD, which stands for a bad sequence: one for each maximal prefix of a character, as the
// Unicode standard recommends (and as Rust and browsers do).
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// The first unit of a byte string: a whole character, or the longest prefix of one.
struct Utf8Unit {
  enum class Kind : uint8_t {
    kValid,
    kInvalid,    // no continuation can make it a character
    kTruncated,  // the bytes end inside a character
  };

  uint32_t length;  // bytes, ≥ 1
  Kind kind;
};

// REQUIRES: `bytes` is not empty.
[[nodiscard]] Utf8Unit NextUtf8Unit(std::string_view bytes);

[[nodiscard]] bool IsUtf8(std::string_view bytes);

// Appends `bytes` to `out` with bad sequences replaced, without an unfinished character at the end.
// Returns the number of bytes used; what remains (at most 3 bytes) begins a character.
size_t AppendLossyUtf8(std::string_view bytes, std::string& out);

// `bytes` with bad sequences replaced, an unfinished character at the end among them.
[[nodiscard]] std::string ToValidUtf8(std::string_view bytes);

// Characters of ToValidUtf8(bytes).
[[nodiscard]] uint64_t CountCodePoints(std::string_view bytes);

// Appends one code point. REQUIRES: `code_point` is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string& out);

}  // namespace spindle
