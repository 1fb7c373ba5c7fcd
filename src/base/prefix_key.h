// Content keys of KV stripes: a SHA-256 chain over the tokens, so that equal keys mean equal KV
// (docs/formats.md). root = H(format, model fingerprint, KV type, adapter, tenant, salt); key_i =
// H(key_{i-1} ‖ method_i ‖ tokens_i). Thread-safety: pure functions. Cost: about 1 µs per stripe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"

namespace spindle {

// Tokens of a stripe: unit of hashing, reference counts and prefix sharing. A compile-time
// constant, since it also defines the tiles of the attention fold.
inline constexpr size_t kStripeTokens = 64;
// Tokens of a segment: span of the attention fold, unit of index sharing.
inline constexpr size_t kSegmentTokens = 1024;

// Everything but tokens that decides whether two stripes hold the same KV.
struct PrefixRoot {
  std::string_view model_fingerprint;
  std::string_view kv_type;
  std::string_view adapter;
  std::string_view tenant;
  std::string_view salt;
};

// How a stripe was computed: zero = densely in all layers, else the fingerprint of the sparse
// method.
using MethodDigest = Digest;
inline constexpr MethodDigest kDenseMethod{};

[[nodiscard]] Digest RootKey(const PrefixRoot& root);

// REQUIRES: tokens.size() == kStripeTokens.
[[nodiscard]] Digest NextStripeKey(const Digest& previous,
                                   const MethodDigest& method,
                                   std::span<const TokenId> tokens);

// Keys of all complete stripes of `tokens`, dense method: [tokens.size() / kStripeTokens].
[[nodiscard]] std::vector<Digest> StripeKeys(const Digest& root, std::span<const TokenId> tokens);

}  // namespace spindle
