#include "server/common/key_file.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/status_macros.h"

namespace spindle::server {
namespace {

constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kHashPrefix = "sha256:";

std::string_view NextWord(std::string_view* rest) {
  rest->remove_prefix(std::min(rest->find_first_not_of(kBlanks), rest->size()));
  const std::string_view word = rest->substr(0, rest->find_first_of(kBlanks));
  rest->remove_prefix(word.size());
  return word;
}

template <typename T>
absl::Status ParseInteger(std::string_view name, std::string_view value, T low, T high, T* out) {
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *out);
  if (error != std::errc() || end != value.data() + value.size() || *out < low || *out > high) {
    return absl::InvalidArgumentError(std::string(name) + " must be an integer from " +
                                      std::to_string(low) + " to " + std::to_string(high));
  }
  return absl::OkStatus();
}

absl::Status ParseSwitch(std::string_view name, std::string_view value, bool* out) {
  if (value != "on" && value != "off") {
    return absl::InvalidArgumentError(std::string(name) + " must be on or off");
  }
  *out = value == "on";
  return absl::OkStatus();
}

absl::Status ParseProperty(std::string_view name, std::string_view value, KeyEntry* entry) {
  if (name == "name") {
    entry->name = std::string(value);
    return absl::OkStatus();
  }
  if (name == "role") {
    if (value != "user" && value != "admin") {
      return absl::InvalidArgumentError("role must be user or admin");
    }
    entry->admin = value == "admin";
    return absl::OkStatus();
  }
  if (name == "concurrency") {
    return ParseInteger<uint32_t>(name, value, 1, 1'000'000, &entry->concurrency);
  }
  if (name == "rpm") {
    return ParseInteger<uint32_t>(name, value, 1, 1'000'000, &entry->rpm);
  }
  if (name == "min_priority") {
    return ParseInteger<int32_t>(name, value, -100, 100, &entry->min_priority);
  }
  if (name == "retention") {
    return ParseSwitch(name, value, &entry->retention);
  }
  if (name == "trusted") {
    return ParseSwitch(name, value, &entry->trusted);
  }
  return absl::InvalidArgumentError("unknown property");
}

// A bare key holds no blank and no `word=` prefix that is a property; keys with '=' inside (base64
// padding) stay bare.
bool IsPropertyLine(std::string_view line) {
  for (const std::string_view name :
       {"name", "key", "role", "concurrency", "rpm", "min_priority", "retention", "trusted"}) {
    if (line.substr(0, name.size()) == name && line.substr(name.size(), 1) == "=") {
      return true;
    }
  }
  return false;
}

absl::StatusOr<KeyEntry> ParseLine(std::string_view line) {
  KeyEntry entry;
  if (!IsPropertyLine(line)) {
    std::string_view rest = line;
    const std::string_view key = NextWord(&rest);
    if (!NextWord(&rest).empty()) {
      return absl::InvalidArgumentError("a bare key holds no blanks");
    }
    SPINDLE_ASSIGN_OR_RETURN(entry.digest, ParseKeyValue(key));
    return entry;
  }
  bool has_key = false;
  std::string_view rest = line;
  for (std::string_view word = NextWord(&rest); !word.empty(); word = NextWord(&rest)) {
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) {
      return absl::InvalidArgumentError("expected property=value");
    }
    const std::string_view name = word.substr(0, equals);
    const std::string_view value = word.substr(equals + 1);
    if (name == "key") {
      SPINDLE_ASSIGN_OR_RETURN(entry.digest, ParseKeyValue(value));
      has_key = true;
      continue;
    }
    SPINDLE_RETURN_IF_ERROR(ParseProperty(name, value, &entry));
  }
  if (!has_key) {
    return absl::InvalidArgumentError("key=… is missing");
  }
  return entry;
}

}  // namespace

Digest KeyDigest(std::string_view key) {
  Sha256 hash;
  hash.Bytes({reinterpret_cast<const uint8_t*>(key.data()), key.size()});
  return hash.Finish();
}

absl::StatusOr<Digest> ParseKeyValue(std::string_view value) {
  if (value.empty()) {
    return absl::InvalidArgumentError("a key must not be empty");
  }
  if (value.substr(0, kHashPrefix.size()) != kHashPrefix) {
    return KeyDigest(value);
  }
  value.remove_prefix(kHashPrefix.size());
  Digest digest{};
  if (value.size() != 2 * digest.size()) {
    return absl::InvalidArgumentError("sha256: must be followed by 64 hex digits");
  }
  for (size_t i = 0; i < digest.size(); ++i) {
    const char* first = value.data() + 2 * i;
    const auto [end, error] = std::from_chars(first, first + 2, digest[i], 16);
    if (error != std::errc() || end != first + 2) {
      return absl::InvalidArgumentError("sha256: must be followed by 64 hex digits");
    }
  }
  return digest;
}

absl::StatusOr<std::vector<KeyEntry>> ParseKeyFile(std::string_view text) {
  std::vector<KeyEntry> entries;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty() || line.front() == '#') {
      continue;
    }
    absl::StatusOr<KeyEntry> entry = ParseLine(line);
    if (!entry.ok()) {
      return absl::InvalidArgumentError("API key file, line " + std::to_string(number) + ": " +
                                        std::string(entry.status().message()));
    }
    entries.push_back(*std::move(entry));
  }
  return entries;
}

}  // namespace spindle::server
