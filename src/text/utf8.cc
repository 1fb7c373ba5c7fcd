#include "text/utf8.h"

#include <algorithm>
#include <cstdint>

namespace spindle::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Form : uint8_t { kValid, kInvalid, kUnfinished };

struct Part {
  size_t size;
  Form form;
};

// The character or the maximal ill-formed part at the front of `bytes` (not empty); Unicode table
// 3-7.
Part FirstPart(std::string_view bytes) {
  const auto byte = [&](size_t index) { return static_cast<uint8_t>(bytes[index]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return {1, Form::kValid};
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return {1, Form::kInvalid};
  }
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
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
  for (size_t i = 1; i < size; ++i) {
    if (i == bytes.size()) {
      return {i, Form::kUnfinished};
    }
    if (byte(i) < low || byte(i) > high) {
      return {i, Form::kInvalid};
    }
    low = 0x80;
    high = 0xBF;
  }
  return {size, Form::kValid};
}

}  // namespace

size_t AppendLossyUtf8(std::string_view bytes, std::string& out) {
  size_t used = 0;
  while (used < bytes.size()) {
    const Part part = FirstPart(bytes.substr(used));
    if (part.form == Form::kUnfinished) {
      break;
    }
    out += part.form == Form::kValid ? bytes.substr(used, part.size) : kReplacement;
    used += part.size;
  }
  return used;
}

bool IsUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Part part = FirstPart(bytes);
    if (part.form != Form::kValid) {
      return false;
    }
    bytes.remove_prefix(part.size);
  }
  return true;
}

size_t Utf8Length(std::string_view bytes) {
  return FirstPart(bytes).size;
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

}  // namespace spindle::text
