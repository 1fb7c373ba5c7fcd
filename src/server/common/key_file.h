// The API key file (docs/configuration.md): one key per line, with optional properties.
// Thread-safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/hash.h"

namespace spindle::server {

struct KeyEntry {
  std::string name;  // for logs; empty = unnamed
  Digest digest{};   // SHA-256 of the key; the key itself is not kept
  bool admin = false;
  uint32_t concurrency = 0;  // requests at a time; 0 = no limit
  uint32_t rpm = 0;          // requests per minute; 0 = no limit
  int32_t min_priority = 0;  // smallest priority number the key may send
  bool retention = false;    // may ask for session retention
  bool trusted = false;      // its fairness header is believed
};

// SHA-256 of a key as presented by a client.
[[nodiscard]] Digest KeyDigest(std::string_view key);

// The text of a key file. ERRORS: kInvalidArgument naming line and property; never the key.
[[nodiscard]] absl::StatusOr<std::vector<KeyEntry>> ParseKeyFile(std::string_view text);

// A key given directly, bare or as sha256:<hex>. ERRORS: kInvalidArgument.
[[nodiscard]] absl::StatusOr<Digest> ParseKeyValue(std::string_view value);

}  // namespace spindle::server
