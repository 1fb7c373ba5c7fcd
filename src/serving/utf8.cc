#include "serving/utf8.h"

namespace spindle::serving {
namespace {

// Length of the sequence that `lead` opens and the range of its second byte (RFC 3629, table of
// well-formed sequences); length 0 for a byte that opens none.
struct LeadByte {
  uint32_t length;
  uint8_t second_min;
  uint8_t second_max;
};

constexpr LeadByte Classify(uint8_t lead) {
  if (lead < 0x80) {
    return {1, 0, 0};
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return {0, 0, 0};
  }
  if (lead < 0xE0) {
    return {2, 0x80, 0xBF};
  }
  if (lead < 0xF0) {
    const uint8_t low = lead == 0xE0 ? 0xA0 : 0x80;   // no overlong forms
    const uint8_t high = lead == 0xED ? 0x9F : 0xBF;  // no surrogates
    return {3, low, high};
  }
  const uint8_t low = lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xF4 ? 0x8F : 0xBF;  // up to U+10FFFF
  return {4, low, high};
}

}  // namespace

Utf8Unit NextUtf8Unit(std::string_view text) {
  const LeadByte lead = Classify(static_cast<uint8_t>(text[0]));
  if (lead.length == 1) {
    return {1, Utf8Unit::Kind::kValid};
  }
  if (lead.length == 0) {
    return {1, Utf8Unit::Kind::kInvalid};
  }
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (i >= text.size()) {
      return {i, Utf8Unit::Kind::kTruncated};
    }
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_min : uint8_t{0x80};
    const uint8_t high = i == 1 ? lead.second_max : uint8_t{0xBF};
    if (byte < low || byte > high) {
      return {i, Utf8Unit::Kind::kInvalid};
    }
  }
  return {lead.length, Utf8Unit::Kind::kValid};
}

std::string ToValidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Unit unit = NextUtf8Unit(bytes);
    out +=
        unit.kind == Utf8Unit::Kind::kValid ? bytes.substr(0, unit.length) : kReplacementCharacter;
    bytes.remove_prefix(unit.length);
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

void AppendCodePoint(char32_t code_point, std::string* out) {
  const auto continuation = [code_point](uint32_t shift) {
    return static_cast<char>(0x80U | ((code_point >> shift) & 0x3FU));
  };
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0U | (code_point >> 6)));
    out->push_back(continuation(0));
  } else if (code_point < 0x10000) {
    out->push_back(static_cast<char>(0xE0U | (code_point >> 12)));
    out->push_back(continuation(6));
    out->push_back(continuation(0));
  } else {
    out->push_back(static_cast<char>(0xF0U | (code_point >> 18)));
    out->push_back(continuation(12));
    out->push_back(continuation(6));
    out->push_back(continuation(0));
  }
}

}  // namespace spindle::serving
