#include "text/special_guard.h"

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"

namespace spindle::text {
namespace {

constexpr char32_t kFirstGuard = 0xFDD0;
constexpr uint32_t kNumGuards = 32;

// Bit i is set when the candidate kFirstGuard + i occurs in `input`.
uint32_t UsedGuards(std::string_view input) {
  uint32_t used = 0;
  // UTF-8 of U+FDD0..U+FDEF: EF B7 90..AF.
  for (size_t at = input.find("\xEF\xB7"); at != std::string_view::npos && at + 2 < input.size();
       at = input.find("\xEF\xB7", at + 1)) {
    const auto last = static_cast<uint8_t>(input[at + 2]);
    if (last >= 0x90 && last < 0x90 + kNumGuards) {
      used |= 1U << (last - 0x90U);
    }
  }
  for (size_t at = input.find("\\u"); at != std::string_view::npos;
       at = input.find("\\u", at + 1)) {
    uint32_t value = 0;
    const std::string_view digits = input.substr(at + 2, 4);
    for (const char c : digits) {
      const auto lower = static_cast<uint32_t>(static_cast<uint8_t>(c) | 0x20U);
      value = value * 16 + (lower >= 'a' ? lower - 'a' + 10 : lower & 0xFU);
    }
    if (digits.size() == 4 && value >= kFirstGuard && value < kFirstGuard + kNumGuards) {
      used |= 1U << (value - kFirstGuard);
    }
  }
  return used;
}

}  // namespace

SpecialGuard::SpecialGuard(std::span<const std::string> special_texts) {
  for (const std::string& text : special_texts) {
    if (!text.empty()) {
      by_first_byte_[static_cast<uint8_t>(text[0])].push_back(text);
    }
  }
}

std::optional<char32_t> SpecialGuard::Choose(std::span<const std::string_view> inputs) {
  uint32_t used = 0;
  for (const std::string_view input : inputs) {
    used |= UsedGuards(input);
  }
  for (uint32_t i = 0; i < kNumGuards; ++i) {
    if ((used >> i & 1U) == 0) {
      return kFirstGuard + i;
    }
  }
  return std::nullopt;
}

std::string SpecialGuard::Guard(std::string_view text, char32_t guard) const {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const size_t length = NextUtf8Unit(rest).length;
    out += rest.substr(0, length);
    const auto& candidates = by_first_byte_[static_cast<uint8_t>(rest[0])];
    if (std::ranges::any_of(
            candidates, [&](const std::string& special) { return rest.starts_with(special); })) {
      AppendUtf8(guard, out);
    }
    at += length;
  }
  return out;
}

std::string SpecialGuard::Remove(std::string_view text, char32_t guard) {
  std::string mark;
  AppendUtf8(guard, mark);
  std::string out;
  out.reserve(text.size());
  size_t from = 0;
  for (size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, from)) {
    out += text.substr(from, at - from);
    from = at + mark.size();
  }
  out += text.substr(from);
  return out;
}

}  // namespace spindle::text
