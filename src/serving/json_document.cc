#include "serving/json_document.h"

#include <charconv>
#include <cstdlib>
#include <system_error>

#include "base/utf8.h"
#include "serving/json_parser.h"

namespace spindle::serving {
namespace {

constexpr char32_t kReplacementCodePoint = 0xFFFD;

// REQUIRES: `text` holds at least four hexadecimal digits at `pos`.
char32_t HexValue(std::string_view text, size_t pos) {
  uint32_t value = 0;
  std::from_chars(text.data() + pos, text.data() + pos + 4, value, 16);
  return value;
}

bool IsHighSurrogate(char32_t c) {
  return c >= 0xD800 && c < 0xDC00;
}

bool IsLowSurrogate(char32_t c) {
  return c >= 0xDC00 && c < 0xE000;
}

// A \u escape of a valid JSON string: what it means and how many bytes it takes (6, or 12 for a
// surrogate pair).
struct UnicodeEscape {
  char32_t code_point;
  size_t length;
  bool lone_surrogate;
};

// REQUIRES: text[pos] is the backslash of a \u escape.
UnicodeEscape ReadUnicodeEscape(std::string_view text, size_t pos) {
  const char32_t first = HexValue(text, pos + 2);
  if (IsHighSurrogate(first) && text.substr(pos + 6, 2) == "\\u") {
    const char32_t second = HexValue(text, pos + 8);
    if (IsLowSurrogate(second)) {
      return {0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00), 12, false};
    }
  }
  if (IsHighSurrogate(first) || IsLowSurrogate(first)) {
    return {kReplacementCodePoint, 6, true};
  }
  return {first, 6, false};
}

char SimpleEscape(char c) {
  switch (c) {
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return c;  // quote, backslash, slash
  }
}

}  // namespace

std::string_view JsonTypeName(JsonType type) {
  switch (type) {
    case JsonType::kNull:
      return "null";
    case JsonType::kBool:
      return "a boolean";
    case JsonType::kNumber:
      return "a number";
    case JsonType::kString:
      return "a string";
    case JsonType::kArray:
      return "an array";
    case JsonType::kObject:
      return "an object";
  }
  return "";
}

std::optional<JsonError> JsonDocument::Parse(std::string_view text,
                                             uint32_t max_depth,
                                             uint64_t max_nodes) {
  return JsonParser(text, max_depth, max_nodes, this).Run();
}

JsonType JsonValue::type() const {
  switch (document_->text_[document_->nodes_[node_].begin]) {
    case '{':
      return JsonType::kObject;
    case '[':
      return JsonType::kArray;
    case '"':
      return JsonType::kString;
    case 't':
    case 'f':
      return JsonType::kBool;
    case 'n':
      return JsonType::kNull;
    default:
      return JsonType::kNumber;
  }
}

bool JsonValue::AsBool() const {
  return raw() == "true";
}

std::string JsonValue::AsString() const {
  std::string_view text = raw();
  text = text.substr(1, text.size() - 2);
  std::string out;
  out.reserve(text.size());
  size_t pos = 0;
  while (pos < text.size()) {
    const size_t escape = text.find('\\', pos);
    out += text.substr(pos, escape - pos);
    if (escape == std::string_view::npos) {
      break;
    }
    pos = escape;
    if (text[pos + 1] == 'u') {
      const UnicodeEscape unicode = ReadUnicodeEscape(text, pos);
      AppendUtf8(unicode.code_point, out);
      pos += unicode.length;
    } else {
      out.push_back(SimpleEscape(text[pos + 1]));
      pos += 2;
    }
  }
  return out;
}

double JsonValue::AsDouble() const {
  const std::string_view text = raw();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    // from_chars does not tell too large from too small; strtod gives ±infinity or (nearly) zero.
    return std::strtod(std::string(text).c_str(), nullptr);
  }
  return value;
}

std::optional<int64_t> JsonValue::AsExactInteger() const {
  const std::string_view text = raw();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::string_view JsonValue::raw() const {
  const JsonDocument::Node& node = document_->nodes_[node_];
  const uint32_t end =
      document_->IsContainer(node_) ? document_->nodes_[node.link].begin + 1 : node.link;
  return document_->text_.substr(node.begin, end - node.begin);
}

std::string JsonValue::Normalized() const {
  std::string out(raw());
  size_t pos = 0;
  while ((pos = out.find('\\', pos)) != std::string::npos) {
    if (out[pos + 1] != 'u') {
      pos += 2;
      continue;
    }
    const UnicodeEscape unicode = ReadUnicodeEscape(out, pos);
    if (unicode.lone_surrogate) {
      out.replace(pos + 2, 4, "fffd");
    }
    pos += unicode.length;
  }
  return out;
}

size_t JsonValue::CountChildren() const {
  size_t count = 0;
  for (auto item = begin(); item != end(); ++item) {
    ++count;
  }
  return count;
}

std::optional<JsonValue> JsonValue::Find(std::string_view name) const {
  std::optional<JsonValue> found;
  for (auto member = begin(); member != end(); ++member) {
    if (member.NameIs(name)) {
      found = member.value();
    }
  }
  return found;
}

JsonValue::Iterator JsonValue::begin() const {
  return {*document_, node_ + 1, Is(JsonType::kObject)};
}

JsonValue::Iterator JsonValue::end() const {
  return {*document_, document_->nodes_[node_].link, Is(JsonType::kObject)};
}

JsonValue::Iterator& JsonValue::Iterator::operator++() {
  node_ = document_->After(in_object_ ? node_ + 1 : node_);
  return *this;
}

bool JsonValue::Iterator::NameIs(std::string_view text) const {
  const std::string_view raw = JsonValue(*document_, node_).raw();
  const std::string_view inner = raw.substr(1, raw.size() - 2);
  return inner.find('\\') == std::string_view::npos ? inner == text : name() == text;
}

void AppendJsonString(std::string_view text, std::string* out) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  out->push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      *out += "\\n";
    } else if (byte < 0x20) {
      *out += "\\u00";
      out->push_back(kHexDigits[byte >> 4]);
      out->push_back(kHexDigits[byte & 0xF]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

}  // namespace spindle::serving
