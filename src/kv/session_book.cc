#include "kv/session_book.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace spindle::kv {
namespace {

// Tails behind one stripe that are compared; more would share little with any request.
constexpr int kMaxTailsCompared = 64;

}  // namespace

uint32_t SharedTokens(std::span<const TokenId> a, std::span<const TokenId> b) {
  const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<uint32_t>(ends.first - a.begin());
}

Digest KeyOf(const disk::SessionManifest& manifest) {
  return disk::SessionKey(manifest.tenant, manifest.id);
}

disk::RecordId ManifestId(const Digest& key) {
  return {.key = key, .kind = disk::RecordKind::kSession, .sub_id = 0};
}

Session MakeSession(disk::SessionManifest&& manifest) {
  Session session{.key = KeyOf(manifest)};
  if (manifest.tail_sub_id != 0) {
    const auto tail =
        std::span(manifest.tokens).subspan(manifest.stripe_keys.size() * kStripeTokens);
    session.tail_tokens.assign(tail.begin(), tail.end());
  }
  session.num_tokens = manifest.tokens.size();
  manifest.tokens = std::vector<TokenId>();  // `= {}` would keep the memory
  session.manifest = std::move(manifest);
  return session;
}

Session* SessionBook::Find(const Digest& key) {
  const auto found = sessions_.find(key);
  return found == sessions_.end() ? nullptr : &found->second;
}

Session& SessionBook::Add(Session&& session) {
  const Digest key = session.key;
  const auto [place, added] = sessions_.emplace(key, std::move(session));
  SPINDLE_CHECK(added);
  Session& kept = place->second;
  if (!kept.tail_tokens.empty()) {
    tails_.emplace(kept.TailParent(), &kept);
  }
  Touch(kept);
  return kept;
}

void SessionBook::Remove(const Session& session) {
  const auto [begin, end] = tails_.equal_range(session.TailParent());
  const auto tail =
      std::find_if(begin, end, [&](const auto& item) { return item.second == &session; });
  if (tail != end) {
    tails_.erase(tail);
  }
  const Digest key = session.key;  // a reference into the session would die with it
  sessions_.erase(key);
}

Session* SessionBook::Oldest() {
  Session* oldest = nullptr;
  for (auto& [key, session] : sessions_) {
    if (!session.manifest.pinned && (oldest == nullptr || session.use < oldest->use)) {
      oldest = &session;
    }
  }
  return oldest;
}

bool SessionBook::OwnsTail(const disk::RecordId& id) const {
  const auto [begin, end] = tails_.equal_range(id.key);
  return std::any_of(begin, end, [&id](const auto& item) { return item.second->tail_id() == id; });
}

Session* SessionBook::FindTail(const Digest& parent, std::span<const TokenId> rest) {
  Session* best = nullptr;
  uint32_t most = 0;
  int compared = 0;
  const auto [begin, end] = tails_.equal_range(parent);
  for (auto item = begin; item != end && compared < kMaxTailsCompared; ++item, ++compared) {
    const uint32_t shared = SharedTokens(item->second->tail_tokens, rest);
    if (shared > most) {
      most = shared;
      best = item->second;
    }
  }
  return best;
}

}  // namespace spindle::kv
