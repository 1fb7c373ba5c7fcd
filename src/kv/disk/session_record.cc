#include "kv/disk/session_record.h"

#include <cstring>
#include <string_view>

#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "kv/disk/byte_codec.h"

namespace spindle::kv::disk {
namespace {

constexpr uint32_t kManifestVersion = 1;
// Longest id or tenant.
constexpr uint64_t kMaxName = 4096;

template <typename T>
void Append(std::vector<uint8_t>* out, const T& value) {
  const size_t at = out->size();
  out->resize(at + sizeof(T));
  PutAt(std::span<uint8_t>(*out), at, value);
}

void AppendText(std::vector<uint8_t>* out, std::string_view text) {
  Append(out, static_cast<uint32_t>(text.size()));
  out->insert(out->end(), text.begin(), text.end());
}

// Takes values off the front; `ok` turns false for good when the bytes end too early.
struct Reader {
  std::span<const uint8_t> bytes;
  bool ok = true;

  template <typename T>
  T Take() {
    if (!ok || bytes.size() < sizeof(T)) {
      ok = false;
      return T{};
    }
    const T value = GetAt<T>(bytes, 0);
    bytes = bytes.subspan(sizeof(T));
    return value;
  }

  std::string TakeText() {
    const auto size = Take<uint32_t>();
    if (!ok || size > kMaxName || size > bytes.size()) {
      ok = false;
      return {};
    }
    std::string text(bytes.begin(), bytes.begin() + size);
    bytes = bytes.subspan(size);
    return text;
  }

  template <typename T>
  std::vector<T> TakeList() {
    const auto size = Take<uint64_t>();
    if (!ok || size > bytes.size() / sizeof(T)) {
      ok = false;
      return {};
    }
    std::vector<T> list(size);
    for (T& value : list) {
      value = Take<T>();
    }
    return list;
  }
};

}  // namespace

std::vector<uint8_t> EncodeSession(const SessionManifest& session) {
  SPINDLE_CHECK(session.id.size() <= kMaxName && session.tenant.size() <= kMaxName);
  std::vector<uint8_t> out;
  Append(&out, kManifestVersion);
  AppendText(&out, session.id);
  AppendText(&out, session.tenant);
  Append(&out, session.tail_sub_id);
  Append(&out, session.created_s);
  Append(&out, session.last_used_s);
  Append(&out, session.ttl_s);
  Append(&out, static_cast<uint8_t>(session.pinned ? 1 : 0));
  Append(&out, session.root);
  Append(&out, static_cast<uint64_t>(session.tokens.size()));
  for (const TokenId token : session.tokens) {
    Append(&out, token);
  }
  Append(&out, static_cast<uint64_t>(session.stripe_keys.size()));
  for (const Digest& key : session.stripe_keys) {
    Append(&out, key);
  }
  return out;
}

absl::StatusOr<SessionManifest> DecodeSession(std::span<const uint8_t> bytes) {
  Reader reader{.bytes = bytes};
  const auto version = reader.Take<uint32_t>();
  SessionManifest session;
  session.id = reader.TakeText();
  session.tenant = reader.TakeText();
  session.tail_sub_id = reader.Take<uint64_t>();
  session.created_s = reader.Take<uint64_t>();
  session.last_used_s = reader.Take<uint64_t>();
  session.ttl_s = reader.Take<uint64_t>();
  const auto pinned = reader.Take<uint8_t>();
  session.pinned = pinned == 1;
  session.root = reader.Take<Digest>();
  session.tokens = reader.TakeList<TokenId>();
  session.stripe_keys = reader.TakeList<Digest>();
  if (!reader.ok || version != kManifestVersion || !reader.bytes.empty() || pinned > 1 ||
      session.stripe_keys.size() > session.tokens.size() / kStripeTokens) {
    return absl::DataLossError("damaged session manifest");
  }
  return session;
}

Digest SessionKey(std::string_view tenant, std::string_view id) {
  Sha256 hash;
  hash.Field("spindle-session").Field(tenant).Field(id);
  return hash.Finish();
}

}  // namespace spindle::kv::disk
