// The manifest of a stored session: what is needed to go on with a conversation after a restart.
// Stored as a record of kind kSession; the stripes it names are ordinary records. Times are seconds
// of the wall clock, given by the caller. Thread-safety: value types and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/ids.h"

namespace spindle::kv::disk {

struct SessionManifest {
  std::string id{};
  std::string tenant{};
  std::vector<TokenId> tokens{};
  Digest root{};                      // that the keys start from
  std::vector<Digest> stripe_keys{};  // of its full stripes, in order
  uint64_t tail_sub_id = 0;           // RecordId::sub_id of the open tail; 0 = none
  uint64_t created_s = 0;
  uint64_t last_used_s = 0;
  uint64_t ttl_s = 0;   // 0 = never ends
  bool pinned = false;  // does not end while this holds

  // A clock that was set back makes no session old.
  [[nodiscard]] bool Expired(uint64_t now_s) const {
    return !pinned && ttl_s != 0 && now_s > last_used_s && now_s - last_used_s >= ttl_s;
  }

  bool operator==(const SessionManifest&) const = default;
};

[[nodiscard]] std::vector<uint8_t> EncodeSession(const SessionManifest& session);

// ERRORS: kDataLoss (arbitrary bytes are refused).
[[nodiscard]] absl::StatusOr<SessionManifest> DecodeSession(std::span<const uint8_t> bytes);

// What a session's record is found by.
[[nodiscard]] Digest SessionKey(std::string_view tenant, std::string_view id);

}  // namespace spindle::kv::disk
