// The sessions of a store in memory: what their manifests say but for the tokens, who was used
// last, which open tail follows a prefix. Does no I/O. Thread-safety: thread-compatible. Pointers
// to sessions stay valid until the session is removed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "kv/disk/disk_index.h"
#include "kv/disk/session_record.h"
#include "kv/prefix_chain.h"
#include "kv/stripe_loader.h"

namespace spindle::kv {

struct Session {
  Digest key{};                           // disk::SessionKey
  disk::SessionManifest manifest{};       // its tokens are not kept
  uint64_t num_tokens = 0;                // … but how many they are,
  std::vector<TokenId> tail_tokens = {};  // and those of the open tail
  uint64_t use = 0;                       // set by the book: higher = used later

  // Restored: the load keeps its stripes in the host tier.
  std::optional<LoadId> load = std::nullopt;
  bool fetching = false;         // its manifest is being read
  bool restore_counted = false;  // how the load went is part of the statistics

  // What the open tail's record is found by.
  [[nodiscard]] const Digest& TailParent() const {
    return manifest.stripe_keys.empty() ? manifest.root : manifest.stripe_keys.back();
  }

  [[nodiscard]] disk::RecordId tail_id() const {
    return TailRecordId(TailParent(), manifest.tail_sub_id);
  }
};

[[nodiscard]] Digest KeyOf(const disk::SessionManifest& manifest);
[[nodiscard]] disk::RecordId ManifestId(const Digest& key);
[[nodiscard]] Session MakeSession(disk::SessionManifest&& manifest);

class SessionBook {
 public:
  // Null if there is none.
  [[nodiscard]] Session* Find(const Digest& key);

  // REQUIRES: no session has this key. It becomes the most recently used.
  Session& Add(Session&& session);

  void Remove(const Session& session);

  // It becomes the most recently used.
  void Touch(Session& session) { session.use = ++uses_; }

  // The one used longest ago that is not pinned; null if there is none. Cost: O(sessions).
  [[nodiscard]] Session* Oldest();

  // The session whose open tail shares most tokens with `rest` behind the stripe `parent`; null if
  // none shares any.
  [[nodiscard]] Session* FindTail(const Digest& parent, std::span<const TokenId> rest);

  // Whether a session has this open tail.
  [[nodiscard]] bool OwnsTail(const disk::RecordId& id) const;

  [[nodiscard]] size_t size() const { return sessions_.size(); }

  // `visit` may change sessions, but not add or remove any.
  template <typename Visit>
  void ForEach(Visit visit) {
    for (auto& [key, session] : sessions_) {
      visit(session);
    }
  }

 private:
  std::unordered_map<Digest, Session, disk::DigestHash> sessions_;
  // By TailParent: sessions that have an open tail.
  std::unordered_multimap<Digest, Session*, disk::DigestHash> tails_;
  uint64_t uses_ = 0;
};

// How many tokens two sequences share at their beginning.
[[nodiscard]] uint32_t SharedTokens(std::span<const TokenId> a, std::span<const TokenId> b);

}  // namespace spindle::kv
