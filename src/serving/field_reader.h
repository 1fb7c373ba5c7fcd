// Typed reading of single request fields, with the error codes and messages of the API. Every
// function either stores the value or returns the error for `path` (dotted, with indexes).
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "serving/api_error.h"
#include "serving/json_document.h"

namespace spindle::serving {

struct IntegerRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};

struct NumberRange {
  double min;
  double max;
  bool excludes_min = false;

  [[nodiscard]] bool Contains(double value) const {
    return (excludes_min ? value > min : value >= min) && value <= max;
  }
};

// Ranges of the sampling fields, for JSON and typed callers alike.
inline constexpr NumberRange kTemperatureRange{0, 2};
inline constexpr NumberRange kProbabilityRange{0, 1};
inline constexpr NumberRange kPenaltyRange{-2, 2};
inline constexpr NumberRange kRepetitionPenaltyRange{0, 10, true};
inline constexpr NumberRange kBiasRange{-100, 100};
inline constexpr IntegerRange kPriorityRange{-100, 100};

// At most 100 bytes of `text`, cut at a character.
[[nodiscard]] std::string Excerpt(std::string_view text);

[[nodiscard]] ApiError WrongType(std::string_view path, std::string_view wanted, JsonType found);
[[nodiscard]] ApiError OutOfRange(std::string_view path, const IntegerRange& range);
[[nodiscard]] ApiError OutOfRange(std::string_view path, const NumberRange& range);
// A name that is none (base/client_name.h).
[[nodiscard]] ApiError BadClientName(std::string_view path);
[[nodiscard]] ApiError Missing(std::string_view path);

// Values that are typed already.
[[nodiscard]] MaybeError CheckInteger(int64_t value,
                                      std::string_view path,
                                      const IntegerRange& range);
// As float, which must be in the range too: not rounded onto an excluded minimum.
[[nodiscard]] MaybeError NarrowNumber(double value,
                                      std::string_view path,
                                      const NumberRange& range,
                                      float* out);
// Index into `choices` of a text that is one of them.
[[nodiscard]] MaybeError FindChoice(std::string_view text,
                                    std::string_view path,
                                    std::span<const std::string_view> choices,
                                    size_t* out);

[[nodiscard]] MaybeError ReadBool(JsonValue value, std::string_view path, bool* out);
[[nodiscard]] MaybeError ReadString(JsonValue value, std::string_view path, std::string* out);
// Any JSON number with an integral value (5.0 is 5).
[[nodiscard]] MaybeError ReadInteger(JsonValue value,
                                     std::string_view path,
                                     const IntegerRange& range,
                                     int64_t* out);
[[nodiscard]] MaybeError ReadNumber(JsonValue value,
                                    std::string_view path,
                                    const NumberRange& range,
                                    float* out);
// Index into `choices` of a string that is one of them.
[[nodiscard]] MaybeError ReadChoice(JsonValue value,
                                    std::string_view path,
                                    std::span<const std::string_view> choices,
                                    size_t* out);
// An array of token ids in [0, vocab_size).
[[nodiscard]] MaybeError ReadTokenIds(JsonValue value,
                                      std::string_view path,
                                      uint32_t vocab_size,
                                      std::vector<TokenId>* out);
// Sorted, each once: no list of ids is longer than the vocabulary.
void KeepDistinct(std::vector<TokenId>* ids);
[[nodiscard]] MaybeError ExpectType(JsonValue value, std::string_view path, JsonType type);

}  // namespace spindle::serving
