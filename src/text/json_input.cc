#include "text/json_input.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace spindle::text {
namespace {

constexpr int kMaxDepth = 100;

// Nesting of brackets outside strings; counted first, because writing and freeing a value recurse.
bool TooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) {
        return true;
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view what) {
  const absl::string_view name(what.data(), what.size());
  if (TooDeep(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is nested deeper than ", kMaxDepth, " levels"));
  }
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is not valid JSON"));
  }
  return value;
}

}  // namespace spindle::text
