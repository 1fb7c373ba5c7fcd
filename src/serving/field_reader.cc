#include "serving/field_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/client_name.h"
#include "base/utf8.h"

namespace spindle::serving {
namespace {

enum class IntegerReading : uint8_t { kGood, kFraction, kTooLarge };

IntegerReading ToInteger(JsonValue value, int64_t* out) {
  if (const std::optional<int64_t> exact = value.AsExactInteger(); exact.has_value()) {
    *out = *exact;
    return IntegerReading::kGood;
  }
  const double number = value.AsDouble();
  constexpr double kTwoTo63 = 9223372036854775808.0;
  if (number < -kTwoTo63 || number >= kTwoTo63) {
    return IntegerReading::kTooLarge;
  }
  if (std::trunc(number) != number) {
    return IntegerReading::kFraction;
  }
  *out = static_cast<int64_t>(number);
  return IntegerReading::kGood;
}

}  // namespace

std::string Excerpt(std::string_view text) {
  constexpr size_t kMaxBytes = 100;
  size_t kept = 0;
  while (kept < text.size()) {
    const uint32_t length = NextUtf8Unit(text.substr(kept)).length;
    if (kept + length > kMaxBytes) {
      break;
    }
    kept += length;
  }
  return ToValidUtf8(text.substr(0, kept));
}

ApiError WrongType(std::string_view path, std::string_view wanted, JsonType found) {
  return InvalidRequest("invalid_type",
                        std::string(path),
                        fmt::format("'{}' must be {}, not {}.", path, wanted, JsonTypeName(found)));
}

ApiError OutOfRange(std::string_view path, const IntegerRange& range) {
  return InvalidRequest("invalid_value",
                        std::string(path),
                        fmt::format("'{}' must be in [{}, {}].", path, range.min, range.max));
}

ApiError OutOfRange(std::string_view path, const NumberRange& range) {
  return InvalidRequest("invalid_value",
                        std::string(path),
                        fmt::format("'{}' must be in {}{}, {}].",
                                    path,
                                    range.excludes_min ? '(' : '[',
                                    range.min,
                                    range.max));
}

ApiError BadClientName(std::string_view path) {
  return InvalidRequest("invalid_value",
                        std::string(path),
                        fmt::format("'{}' must be 1 to {} characters of A-Z, a-z, 0-9, '.', '_', "
                                    "':' and '-', and neither '.' nor '..'.",
                                    path,
                                    kMaxClientNameBytes));
}

ApiError Missing(std::string_view path) {
  return InvalidRequest(
      "missing_required_parameter", std::string(path), fmt::format("'{}' is required.", path));
}

MaybeError ExpectType(JsonValue value, std::string_view path, JsonType type) {
  if (!value.Is(type)) {
    return WrongType(path, JsonTypeName(type), value.type());
  }
  return std::nullopt;
}

MaybeError CheckInteger(int64_t value, std::string_view path, const IntegerRange& range) {
  return value >= range.min && value <= range.max ? MaybeError() : OutOfRange(path, range);
}

MaybeError NarrowNumber(double value, std::string_view path, const NumberRange& range, float* out) {
  const auto narrow = static_cast<float>(value);
  if (!range.Contains(value)) {
    return OutOfRange(path, range);
  }
  // A value next to an excluded minimum may round onto it.
  if (!range.Contains(static_cast<double>(narrow))) {
    return InvalidRequest(
        "invalid_value",
        std::string(path),
        fmt::format("'{}' is so close to {} that it is rounded to it.", path, range.min));
  }
  *out = narrow;
  return std::nullopt;
}

MaybeError FindChoice(std::string_view text,
                      std::string_view path,
                      std::span<const std::string_view> choices,
                      size_t* out) {
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == text) {
      *out = i;
      return std::nullopt;
    }
  }
  return InvalidRequest(
      "invalid_value",
      std::string(path),
      fmt::format(
          "'{}' must be one of {}; it is '{}'.", path, fmt::join(choices, ", "), Excerpt(text)));
}

MaybeError ReadBool(JsonValue value, std::string_view path, bool* out) {
  if (MaybeError error = ExpectType(value, path, JsonType::kBool); error.has_value()) {
    return error;
  }
  *out = value.AsBool();
  return std::nullopt;
}

MaybeError ReadString(JsonValue value, std::string_view path, std::string* out) {
  if (MaybeError error = ExpectType(value, path, JsonType::kString); error.has_value()) {
    return error;
  }
  *out = value.AsString();
  return std::nullopt;
}

MaybeError ReadInteger(JsonValue value,
                       std::string_view path,
                       const IntegerRange& range,
                       int64_t* out) {
  if (!value.Is(JsonType::kNumber)) {
    return WrongType(path, "an integer", value.type());
  }
  int64_t integer = 0;
  switch (ToInteger(value, &integer)) {
    case IntegerReading::kFraction:
      return InvalidRequest("invalid_type",
                            std::string(path),
                            fmt::format("'{}' must be an integer, not a fraction.", path));
    case IntegerReading::kTooLarge:
      return OutOfRange(path, range);
    case IntegerReading::kGood:
      break;
  }
  *out = integer;
  return CheckInteger(integer, path, range);
}

MaybeError ReadNumber(JsonValue value,
                      std::string_view path,
                      const NumberRange& range,
                      float* out) {
  if (MaybeError error = ExpectType(value, path, JsonType::kNumber); error.has_value()) {
    return error;
  }
  return NarrowNumber(value.AsDouble(), path, range, out);
}

MaybeError ReadChoice(JsonValue value,
                      std::string_view path,
                      std::span<const std::string_view> choices,
                      size_t* out) {
  std::string text;
  if (MaybeError error = ReadString(value, path, &text); error.has_value()) {
    return error;
  }
  return FindChoice(text, path, choices, out);
}

void KeepDistinct(std::vector<TokenId>* ids) {
  std::sort(ids->begin(), ids->end());
  ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
  ids->shrink_to_fit();
}

MaybeError ReadTokenIds(JsonValue value,
                        std::string_view path,
                        uint32_t vocab_size,
                        std::vector<TokenId>* out) {
  if (MaybeError error = ExpectType(value, path, JsonType::kArray); error.has_value()) {
    return error;
  }
  const IntegerRange range{0, static_cast<int64_t>(vocab_size) - 1};
  std::vector<TokenId> ids;
  ids.reserve(value.CountChildren());
  for (auto item = value.begin(); item != value.end(); ++item) {
    // The path is built for the failing item only: prompts hold many.
    int64_t id = 0;
    if (!item.value().Is(JsonType::kNumber) ||
        ToInteger(item.value(), &id) != IntegerReading::kGood || id < range.min || id > range.max) {
      return ReadInteger(item.value(), fmt::format("{}[{}]", path, ids.size()), range, &id);
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  *out = std::move(ids);
  return std::nullopt;
}

}  // namespace spindle::serving
