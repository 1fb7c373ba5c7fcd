#include "base/prefix_key.h"

#include <array>

#include "base/status_macros.h"

namespace spindle {

Digest RootKey(const PrefixRoot& root) {
  static constexpr uint64_t kKeyFormat = 1;
  return Sha256()
      .Field("spindle-kv")
      .Number(kKeyFormat)
      .Field(root.model_fingerprint)
      .Field(root.kv_type)
      .Field(root.adapter)
      .Field(root.tenant)
      .Field(root.salt)
      .Finish();
}

Digest NextStripeKey(const Digest& previous,
                     const MethodDigest& method,
                     std::span<const TokenId> tokens) {
  SPINDLE_CHECK(tokens.size() == kStripeTokens);
  std::array<uint8_t, 4 * kStripeTokens> bytes;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<uint32_t>(tokens[i]);
    for (size_t b = 0; b < 4; ++b) {
      bytes[4 * i + b] = static_cast<uint8_t>(token >> (8 * b));
    }
  }
  return Sha256().Bytes(previous).Bytes(method).Number(tokens.size()).Bytes(bytes).Finish();
}

std::vector<Digest> StripeKeys(const Digest& root, std::span<const TokenId> tokens) {
  std::vector<Digest> keys;
  keys.reserve(tokens.size() / kStripeTokens);
  Digest key = root;
  for (size_t begin = 0; begin + kStripeTokens <= tokens.size(); begin += kStripeTokens) {
    key = NextStripeKey(key, kDenseMethod, tokens.subspan(begin, kStripeTokens));
    keys.push_back(key);
  }
  return keys;
}

}  // namespace spindle
