#include "server/http/json_writer.h"

#include <array>
#include <charconv>
#include <cstddef>

namespace spindle::server {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the valid UTF-8 character at the front (1 to 4), or 0. Overlong forms, surrogates and
// values above U+10FFFF are not valid (table 3-7 of the Unicode standard).
size_t ValidPrefix(std::string_view text) {
  const auto byte = [&](size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto is_tail = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    return is_tail(1) ? 2 : 0;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool second = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F);
    return is_tail(1) && is_tail(2) && !second ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool second = (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
    return is_tail(1) && is_tail(2) && is_tail(3) && !second ? 4 : 0;
  }
  return 0;
}

void AppendEscape(unsigned char byte, std::string* out) {
  switch (byte) {
    case '"':
      out->append("\\\"");
      return;
    case '\\':
      out->append("\\\\");
      return;
    case '\n':
      out->append("\\n");
      return;
    case '\r':
      out->append("\\r");
      return;
    case '\t':
      out->append("\\t");
      return;
    default:
      break;
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  out->append("\\u00");
  out->push_back(kHex[byte >> 4U]);
  out->push_back(kHex[byte & 0xFU]);
}

template <typename T>
void AppendChars(T value, std::string* out) {
  std::array<char, 64> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  out->append(buffer.data(), result.ptr);
}

}  // namespace

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    // The longest run of plain ASCII goes out at once.
    size_t plain = 0;
    while (plain < text.size()) {
      const auto byte = static_cast<unsigned char>(text[plain]);
      if (byte < 0x20 || byte >= 0x80 || byte == '"' || byte == '\\') {
        break;
      }
      ++plain;
    }
    out->append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) {
      break;
    }
    const auto byte = static_cast<unsigned char>(text.front());
    if (byte < 0x80) {
      AppendEscape(byte, out);
      text.remove_prefix(1);
      continue;
    }
    const size_t length = ValidPrefix(text);
    out->append(length > 0 ? text.substr(0, length) : kReplacement);
    text.remove_prefix(length > 0 ? length : 1);
  }
  out->push_back('"');
}

void AppendJsonNumber(float value, std::string* out) {
  AppendChars(value, out);
}

void AppendJsonNumber(int64_t value, std::string* out) {
  AppendChars(value, out);
}

void AppendJsonNumber(uint64_t value, std::string* out) {
  AppendChars(value, out);
}

std::string SanitizeUtf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const size_t length = ValidPrefix(text);
    clean.append(length > 0 ? text.substr(0, length) : kReplacement);
    text.remove_prefix(length > 0 ? length : 1);
  }
  return clean;
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = ValidPrefix(text);
    if (length == 0) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace spindle::server
