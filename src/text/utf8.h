// UTF-8 without exceptions: validity, and lossy decoding that can wait for the rest of a character.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace spindle::text {

// Appends `bytes` to `out` as valid UTF-8: each maximal ill-formed part becomes one U+FFFD, as the
// Unicode standard recommends (and as Rust and browsers do). An unfinished character at the end is
// left out. Returns the number of bytes used; what remains (at most 3 bytes) begins a character.
size_t AppendLossyUtf8(std::string_view bytes, std::string& out);

[[nodiscard]] bool IsUtf8(std::string_view bytes);

// Bytes of the character that begins at bytes[0]. REQUIRES: `bytes` is not empty and valid UTF-8.
[[nodiscard]] size_t Utf8Length(std::string_view bytes);

// Appends one code point. REQUIRES: `code_point` is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string& out);

}  // namespace spindle::text
