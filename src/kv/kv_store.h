// Paged, head-wise KV storage and the prefix cache over it. A stripe holds 64 consecutive tokens of
// all layers and heads; inside it, page (layer, head, p) is P tokens, K half then V half
// (docs/formats.md). Engine-thread only, except Stats(), which is thread-safe.
//
// Life of a sequence: Open (takes shared stripes of a cached prefix) → Extend (room) → the
// attention runtime writes rows through View → Commit (tokens count) → Seal (a full stripe becomes
// immutable and sharable) … → Close. Invariants (CheckIntegrity): free + cached + owned = capacity;
// every stripe's reference count equals the number of sequences that list it; a stripe in the
// prefix index is sealed and its parent is in the index too; all counts are zero after the last
// Close and ResetPrefixCache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/prefix_key.h"
#include "kv/kv_geometry.h"
#include "kv/kv_options.h"
#include "kv/stripe_record.h"

namespace spindle::kv {

// What a sequence's KV looks like to the attention runtime; valid until the next non-const call on
// the store.
struct SequenceView {
  std::span<uint8_t* const> stripes;  // base addresses, position order
  std::span<const uint32_t> slots;    // of the stripes: each < capacity_stripes
  // By slot: changes whenever the slot is given to other content, so that what was derived from a
  // stripe is valid while this stays the same.
  std::span<const uint32_t> generations;
  uint32_t num_tokens;  // committed tokens
};

// A stripe of the prefix cache, for the tier below; valid while its sequence is open.
struct SealedStripe {
  const uint8_t* data;
  ContentChecksum checksum;
};

// Why a sequence takes cached stripes.
enum class PrefixUse : uint8_t {
  kHit,   // a request runs on them: they have proved useful
  kHold,  // only to keep them while they are moved
};

struct KvStats {
  uint64_t capacity_stripes;
  uint64_t free_stripes;    // never used or returned
  uint64_t cached_stripes;  // only in the prefix cache: evictable
  uint64_t owned_stripes;   // referenced by at least one sequence
  uint64_t stripe_bytes;
  uint64_t committed_bytes;  // memory really taken from the system
  uint64_t prefix_entries;
  uint64_t prefix_evictions;
  uint64_t adopted_stripes;  // seals that switched to an equal cached stripe
  uint64_t seal_conflicts;   // seals that found their key with other content and stayed private
};

class KvStore {
 public:
  // ERRORS: kInvalidArgument (geometry, see ValidateGeometry; budget under two stripes),
  //         kResourceExhausted (address space).
  static absl::StatusOr<std::unique_ptr<KvStore>> Create(const KvOptions& options,
                                                         const KvGeometry& geometry);
  ~KvStore();
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  [[nodiscard]] const KvGeometry& geometry() const;

  // Number of leading stripes of `keys` in the prefix cache. Does not change recency.
  [[nodiscard]] uint32_t MatchPrefix(std::span<const Digest> keys) const;

  // Starts a sequence on the first `num_shared` cached stripes of `keys` (see MatchPrefix), which
  // stay pinned until Close. Committed tokens = 64 · num_shared. REQUIRES: num_shared <=
  // MatchPrefix(keys).
  [[nodiscard]] SequenceId Open(BudgetGroupId group,
                                std::span<const Digest> keys,
                                uint32_t num_shared,
                                PrefixUse use = PrefixUse::kHit);

  // Makes room for positions [0, num_tokens), evicting cached stripes when nothing is free; empty
  // slots are used first. All or nothing. ERRORS: kResourceExhausted (nothing changed).
  [[nodiscard]] absl::Status Extend(SequenceId seq, uint32_t num_tokens);

  // Positions [0, num_tokens) now hold KV. REQUIRES: room for them; not fewer than committed
  // before.
  void Commit(SequenceId seq, uint32_t num_tokens);

  // Publishes a full, committed stripe under its key: it is immutable from now on. When an equal
  // stripe (key and content checksum) is cached already, the sequence switches to that one and its
  // own copy is freed. Stripes must be sealed in order. Without the prefix cache the stripe only
  // becomes immutable. `checksum`: of the content, where it is known already. REQUIRES: ordinal is
  // the sequence's first unsealed stripe; 64 · (ordinal + 1) ≤ committed tokens.
  void Seal(SequenceId seq,
            uint32_t ordinal,
            const Digest& key,
            const ContentChecksum* checksum = nullptr);

  // REQUIRES: the stripe is in the prefix cache (it was shared by Open, or published by Seal).
  [[nodiscard]] SealedStripe Sealed(SequenceId seq, uint32_t ordinal) const;

  // Number of leading sealed stripes.
  [[nodiscard]] uint32_t NumSealed(SequenceId seq) const;

  // Number of leading stripes that are in the prefix cache; what lies behind rests on content that
  // only this sequence has.
  [[nodiscard]] uint32_t NumPublished(SequenceId seq) const;

  // A new sequence with the same content: sealed stripes are shared, unsealed ones copied.
  // ERRORS: kResourceExhausted (nothing changed).
  [[nodiscard]] absl::StatusOr<SequenceId> Fork(SequenceId seq);

  // Ends a sequence; sealed stripes stay in the prefix cache (most recently used), the others are
  // freed at once.
  void Close(SequenceId seq);

  [[nodiscard]] SequenceView View(SequenceId seq) const;

  // Stripes that Extend could still hand out: free + evictable.
  [[nodiscard]] uint64_t AvailableStripes() const;

  // Drops all unreferenced cached stripes; returns how many.
  uint64_t ResetPrefixCache();

  // Counters as of the last engine call; thread-safe, never waits for the engine.
  [[nodiscard]] KvStats Stats() const;

  // kInternal naming the first broken invariant. Cost: O(stripes).
  [[nodiscard]] absl::Status CheckIntegrity() const;

  [[nodiscard]] static uint32_t StripesFor(uint64_t num_tokens) {
    return static_cast<uint32_t>((num_tokens + kStripeTokens - 1) / kStripeTokens);
  }

 private:
  class Impl;
  explicit KvStore(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace spindle::kv
