#include "base/utf8.h"

namespace spindle {

// Unicode table 3-7 (well-formed sequences).
Utf8Unit NextUtf8Unit(std::string_view bytes) {
  const auto byte = [bytes](size_t index) { return static_cast<uint8_t>(bytes[index]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return {1, Utf8Unit::Kind::kValid};
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return {1, Utf8Unit::Kind::kInvalid};
  }
  const uint32_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and values above U+10FFFF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead == 0xE0) {
    low = 0xA0;
  } else if (lead == 0xED) {
    high = 0x9F;
  } else if (lead == 0xF0) {
    low = 0x90;
  } else if (lead == 0xF4) {
    high = 0x8F;
  }
  for (uint32_t i = 1; i < length; ++i) {
    if (i == bytes.size()) {
      return {i, Utf8Unit::Kind::kTruncated};
    }
    if (byte(i) < low || byte(i) > high) {
      return {i, Utf8Unit::Kind::kInvalid};
    }
    low = 0x80;
    high = 0xBF;
  }
  return {length, Utf8Unit::Kind::kValid};
}

bool IsUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Unit unit = NextUtf8Unit(bytes);
    if (unit.kind != Utf8Unit::Kind::kValid) {
      return false;
    }
    bytes.remove_prefix(unit.length);
  }
  return true;
}

size_t AppendLossyUtf8(std::string_view bytes, std::string& out) {
  size_t used = 0;
  while (used < bytes.size()) {
    const Utf8Unit unit = NextUtf8Unit(bytes.substr(used));
    if (unit.kind == Utf8Unit::Kind::kTruncated) {
      break;
    }
    out += unit.kind == Utf8Unit::Kind::kValid ? bytes.substr(used, unit.length)
                                               : kReplacementCharacter;
    used += unit.length;
  }
  return used;
}

std::string ToValidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (AppendLossyUtf8(bytes, out) < bytes.size()) {
    out += kReplacementCharacter;
  }
  return out;
}

uint64_t CountCodePoints(std::string_view bytes) {
  uint64_t count = 0;
  while (!bytes.empty()) {
    bytes.remove_prefix(NextUtf8Unit(bytes).length);
    ++count;
  }
  return count;
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto add = [&](char32_t bits) { out += static_cast<char>(static_cast<uint8_t>(bits)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3F));
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

}  // namespace spindle
