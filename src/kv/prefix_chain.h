// A prefix as the disk tier sees it, and how its stripes are named in requests to the device.
// Thread-safety: value types.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/prefix_key.h"
#include "kv/disk/disk_format.h"

namespace spindle::kv {

// The keys of a prefix's full stripes, the tokens behind them, and the root they start from.
struct PrefixChain {
  std::span<const Digest> keys;
  std::span<const TokenId> tokens;  // at least 64 per key
  Digest root;
};

// The first stripes of a chain, for longer than the call it came with.
struct OwnedChain {
  OwnedChain() = default;

  OwnedChain(const PrefixChain& chain, uint32_t num_stripes)
      : keys(chain.keys.begin(), chain.keys.begin() + num_stripes),
        tokens(chain.tokens.begin(), chain.tokens.begin() + num_stripes * kStripeTokens),
        root(chain.root) {}

  [[nodiscard]] const Digest& Parent(uint32_t ordinal) const {
    return ordinal == 0 ? root : keys[ordinal - 1];
  }

  [[nodiscard]] std::span<const TokenId> Tokens(uint32_t ordinal) const {
    return std::span(tokens).subspan(ordinal * kStripeTokens, kStripeTokens);
  }

  std::vector<Digest> keys;
  std::vector<TokenId> tokens;
  Digest root{};
};

// The rows behind the last full stripe of a sequence, as a record of their own.
struct OpenTail {
  uint64_t sub_id = 0;               // tells tails behind the same stripe apart; not 0
  std::vector<TokenId> tokens = {};  // 1 … 63
};

// `parent`: key of the stripe before, or the root.
[[nodiscard]] inline disk::RecordId TailRecordId(const Digest& parent, uint64_t sub_id) {
  return {.key = parent, .kind = disk::RecordKind::kOpenTail, .sub_id = sub_id};
}

[[nodiscard]] inline disk::RecordId StripeRecordId(const Digest& key) {
  return {.key = key, .kind = disk::RecordKind::kStripe, .sub_id = 0};
}

// In the place of an ordinal: the open tail.
inline constexpr uint32_t kTailOrdinal = UINT32_MAX;

// The tag of a request to the device: which load or store (by its place), and which stripe of it.
// The highest bit is never set: tags with it belong to others.
struct StripeTag {
  uint32_t place;
  uint32_t ordinal;

  [[nodiscard]] uint64_t Pack() const { return uint64_t{place} << 32 | ordinal; }

  [[nodiscard]] static StripeTag Unpack(uint64_t tag) {
    return {static_cast<uint32_t>(tag >> 32), static_cast<uint32_t>(tag)};
  }
};

}  // namespace spindle::kv
