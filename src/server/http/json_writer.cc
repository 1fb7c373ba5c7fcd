#include "server/http/json_writer.h"

#include <array>
#include <charconv>
#include <cstddef>

#include "base/utf8.h"

namespace spindle::server {
namespace {

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

void AppendJsonText(std::string_view text, std::string* out) {
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
    const Utf8Unit unit = NextUtf8Unit(text);
    const bool valid = unit.kind == Utf8Unit::Kind::kValid;
    out->append(valid ? text.substr(0, unit.length) : kReplacementCharacter);
    text.remove_prefix(unit.length);
  }
}

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  AppendJsonText(text, out);
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

}  // namespace spindle::server
