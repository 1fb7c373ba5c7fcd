// UTF-8 in bytes that may be cut or damaged. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spindle::serving {

// U+FFFD, which stands for a bad sequence.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// The first unit of a byte string: a whole character, or the longest prefix of one (one U+FFFD).
struct Utf8Unit {
  enum class Kind : uint8_t {
    kValid,
    kInvalid,    // no continuation can make it a character
    kTruncated,  // the text ends inside a character
  };

  uint32_t length;  // bytes, ≥ 1
  Kind kind;
};

// REQUIRES: text is not empty.
[[nodiscard]] Utf8Unit NextUtf8Unit(std::string_view text);

// Bad sequences become U+FFFD, one for each maximal prefix of a character.
[[nodiscard]] std::string ToValidUtf8(std::string_view bytes);

// Characters of ToValidUtf8(bytes).
[[nodiscard]] uint64_t CountCodePoints(std::string_view bytes);

// REQUIRES: a Unicode scalar value.
void AppendCodePoint(char32_t code_point, std::string* out);

}  // namespace spindle::serving
