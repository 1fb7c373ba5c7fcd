// Keeps text that merely looks like a control token from becoming one. A guard, a noncharacter that
// occurs nowhere in the input, is put inside each look-alike; the tokenizer drops it after it has
// recognised control tokens. Thread-safety: immutable after construction.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spindle::text {

class SpecialGuard {
 public:
  explicit SpecialGuard(std::span<const std::string> special_texts);

  // A noncharacter in U+FDD0..U+FDEF that occurs in none of `inputs`, neither as itself nor as a
  // JSON escape; nullopt when all 32 occur. Cost: O(total size).
  [[nodiscard]] static std::optional<char32_t> Choose(std::span<const std::string_view> inputs);

  // `text` with `guard` after the first character of every occurrence of a control token's text,
  // overlapping ones included. REQUIRES: `text` is valid UTF-8.
  [[nodiscard]] std::string Guard(std::string_view text, char32_t guard) const;

  // `text` without `guard`.
  [[nodiscard]] static std::string Remove(std::string_view text, char32_t guard);

 private:
  // Control token texts by their first byte.
  std::array<std::vector<std::string>, 256> by_first_byte_;
};

}  // namespace spindle::text
