#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "base/status_macros.h"
#include "config/option_table.h"

namespace spindle::config {
namespace {

struct Unit {
  std::string_view suffix;
  uint64_t factor;
};

constexpr std::array<Unit, 10> kByteUnits{{{"KiB", 1ULL << 10},
                                           {"MiB", 1ULL << 20},
                                           {"GiB", 1ULL << 30},
                                           {"TiB", 1ULL << 40},
                                           {"KB", 1000},
                                           {"MB", 1000000},
                                           {"GB", 1000000000},
                                           {"TB", 1000000000000},
                                           {"B", 1},
                                           {"", 1}}};
// Longest suffix first, so that "ms" is not read as "s".
constexpr std::array<Unit, 5> kTimeUnits{{{"ms", 1000000},
                                          {"s", 1000000000},
                                          {"m", 60000000000},
                                          {"h", 3600000000000},
                                          {"", 1000000000}}};

// Of the smallest unit; as nanoseconds 2,500,000 h.
constexpr double kMaxScaled = 9.0e18;

// A number with one of the units, as a whole number of the smallest unit, up to kMaxScaled.
template <size_t N>
std::optional<uint64_t> ParseWithUnit(std::string_view text, const std::array<Unit, N>& units) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && number >= 0.0 && std::isfinite(number)) {
    const std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
    for (const Unit& unit : units) {
      const double scaled = number * static_cast<double>(unit.factor);
      if (suffix == unit.suffix && scaled <= kMaxScaled) {
        return static_cast<uint64_t>(scaled);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

double AsWritten(float value) {
  const std::string text = fmt::format("{}", value);  // the shortest that reads back equal
  double number = 0.0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

absl::StatusOr<uint64_t> ParseBytes(std::string_view text, uint64_t min, uint64_t max) {
  const std::optional<uint64_t> bytes = ParseWithUnit(text, kByteUnits);
  if (!bytes.has_value() || *bytes < min || *bytes > max) {
    return absl::InvalidArgumentError(
        fmt::format("must be a size such as 512MiB, in {}..{} bytes, got '{}'", min, max, text));
  }
  return *bytes;
}

absl::StatusOr<std::chrono::nanoseconds> ParseSeconds(std::string_view text,
                                                      std::chrono::nanoseconds min) {
  const std::optional<uint64_t> nanoseconds = ParseWithUnit(text, kTimeUnits);
  const std::chrono::nanoseconds time(nanoseconds.value_or(0));
  if (!nanoseconds.has_value() || time < min) {
    return absl::InvalidArgumentError(
        fmt::format("must be a time such as 30, 500ms or 2m, in {}s..2500000h, got '{}'",
                    std::chrono::duration<double>(min).count(),
                    text));
  }
  return time;
}

absl::StatusOr<bool> ParseBool(std::string_view text) {
  if (text == "true" || text == "1" || text == "on") {
    return true;
  }
  if (text == "false" || text == "0" || text == "off") {
    return false;
  }
  return absl::InvalidArgumentError(
      fmt::format("must be true or false (1/0, on/off), got '{}'", text));
}

absl::StatusOr<uint64_t> ParseUint(std::string_view text, uint64_t min, uint64_t max) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    return absl::InvalidArgumentError(
        fmt::format("must be an integer in {}..{}, got '{}'", min, max, text));
  }
  return value;
}

absl::StatusOr<double> ParseNumber(std::string_view text, double min, double max) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= min && value <= max)) {
    return absl::InvalidArgumentError(
        fmt::format("must be a number in {:g}..{:g}, got '{}'", min, max, text));
  }
  return value;
}

}  // namespace spindle::config
