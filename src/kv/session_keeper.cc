#include "kv/session_keeper.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"

namespace spindle::kv {
namespace {

// Part of the host tier that restored sessions may hold.
constexpr uint64_t kHostShareInverse = 2;

// One session has one tail at a time; 0 means none.
uint64_t TailSubId(const Digest& session_key) {
  uint64_t id = 0;
  std::memcpy(&id, session_key.data(), sizeof(id));
  return std::max<uint64_t>(id, 1);
}

}  // namespace

uint64_t SystemSeconds() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

SessionKeeper::SessionKeeper(SessionOptions options,
                             KvStore& host,
                             disk::DiskStore& disk,
                             StripeLoader& loader,
                             StripeWriter& writer)
    : options_(std::move(options)), host_(host), disk_(disk), loader_(loader), writer_(writer) {}

// --- saving

bool SessionKeeper::Save(SaveRequest&& request) {
  if (saves_.size() >= options_.max_pending) {
    ++counters_.saves_failed;
    return false;
  }
  const uint64_t now = options_.wall_seconds();
  const Digest key = disk::SessionKey(request.name.tenant, request.name.id);
  const Session* const before = book_.Find(key);
  PendingSave save;
  save.manifest = {.id = std::move(request.name.id),
                   .tenant = std::move(request.name.tenant),
                   .tokens = request.chain.tokens,
                   .root = request.chain.root,
                   .stripe_keys = request.chain.keys,
                   .tail_sub_id = request.tail.empty() ? 0 : TailSubId(key),
                   .created_s = before != nullptr ? before->manifest.created_s : now,
                   .last_used_s = now,
                   .ttl_s = request.ttl_s,
                   .pinned = before != nullptr && before->manifest.pinned};
  save.manifest.tokens.insert(save.manifest.tokens.end(), request.tail.begin(), request.tail.end());
  for (const Digest& stripe : save.manifest.stripe_keys) {
    disk_.Retain(stripe);
  }
  StripeWriter::SaveRequest stripes{.sequence = request.sequence,
                                    .chain = std::move(request.chain),
                                    .tail = std::nullopt,
                                    .tag = ++last_tag_ | kTagBit};
  if (!request.tail.empty()) {
    stripes.tail = OpenTail{save.manifest.tail_sub_id, std::move(request.tail)};
  }
  const uint64_t tag = stripes.tag;
  if (!writer_.Save(std::move(stripes))) {
    Abandon(save);
    return false;
  }
  saves_.emplace(tag, std::move(save));
  return true;
}

void SessionKeeper::OnSaved(const StripeWriter::SaveResult& result) {
  const auto found = saves_.find(result.tag);
  SPINDLE_CHECK(found != saves_.end());
  PendingSave& save = found->second;
  disk::SessionManifest& manifest = save.manifest;
  ReleaseStripes(std::span(manifest.stripe_keys).subspan(result.num_stripes), save.deleted);
  save.partial = result.num_stripes < manifest.stripe_keys.size() ||
                 (manifest.tail_sub_id != 0 && !result.tail);
  manifest.stripe_keys.resize(result.num_stripes);
  if (!result.tail) {
    manifest.tail_sub_id = 0;
    manifest.tokens.resize(result.num_stripes * kStripeTokens);
  }
  save.written = true;
  PutManifest(result.tag);
}

void SessionKeeper::PutManifest(uint64_t tag) {
  const auto found = saves_.find(tag);
  PendingSave& save = found->second;
  if (!save.deleted && !save.manifest.tokens.empty()) {
    const absl::Status status = disk_
                                    .SubmitPut(ManifestId(KeyOf(save.manifest)),
                                               EncodeSession(save.manifest),
                                               disk::Ack::kDurable,
                                               tag)
                                    .status();
    save.submitted = status.ok();
    // A full queue empties.
    if (status.ok() || (absl::IsResourceExhausted(status) && disk_.Stats().stores_pending > 0)) {
      return;
    }
  }
  Abandon(save);
  saves_.erase(found);
}

void SessionKeeper::ReleaseStripes(std::span<const Digest> keys, bool erase) {
  for (const Digest& stripe : keys) {
    if (disk_.Release(stripe) && erase) {
      disk_.Erase(StripeRecordId(stripe));
    }
  }
}

// Nothing of the save stays but its stripes, as ordinary ones.
void SessionKeeper::Abandon(const PendingSave& save) {
  const disk::SessionManifest& manifest = save.manifest;
  ReleaseStripes(manifest.stripe_keys, save.deleted);
  const Digest& parent = manifest.stripe_keys.empty() ? manifest.root : manifest.stripe_keys.back();
  const Session* const current = book_.Find(KeyOf(manifest));
  if (manifest.tail_sub_id != 0 && (current == nullptr || current->TailParent() != parent)) {
    disk_.Erase(TailRecordId(parent, manifest.tail_sub_id));
  }
  if (!save.deleted) {
    ++counters_.saves_failed;
  }
}

void SessionKeeper::Install(PendingSave&& save) {
  const Digest key = KeyOf(save.manifest);
  if (save.deleted) {
    disk_.Erase(ManifestId(key));
    Abandon(save);
    return;
  }
  ++(save.partial ? counters_.saves_partial : counters_.saves_complete);
  damaged_.erase(key);
  Session session = MakeSession(std::move(save.manifest));
  if (Session* const before = book_.Find(key); before != nullptr) {
    session.manifest.pinned = before->manifest.pinned;
    if (before->tail_tokens.empty() || before->tail_id() == session.tail_id()) {
      before->manifest.tail_sub_id = 0;  // its record is the new one's
    }
    Detach(*before, /*erase_stripes=*/false);
  }
  book_.Add(std::move(session));
  EnforceBounds();
}

void SessionKeeper::EnforceBounds() {
  const auto share =
      static_cast<uint64_t>(options_.max_share * static_cast<double>(disk_.Stats().capacity_bytes));
  for (;;) {
    const bool too_many = book_.size() > options_.max_sessions;
    if (!too_many && disk_.RetainedBytes() <= share) {
      return;
    }
    Session* const oldest = book_.Oldest();
    if (oldest == nullptr) {
      return;
    }
    End(*oldest, too_many ? SessionEnd::kNumber : SessionEnd::kSpace, /*erase_stripes=*/false);
  }
}

// --- the end of sessions

void SessionKeeper::End(Session& session, SessionEnd cause, bool erase_stripes) {
  ++counters_.ended[static_cast<size_t>(cause)];
  disk_.Erase(ManifestId(session.key));
  Detach(session, erase_stripes);
}

void SessionKeeper::Detach(Session& session, bool erase_stripes) {
  if (session.load.has_value()) {
    loader_.End(*session.load);
    std::erase(restored_, &session);
  }
  if (!session.tail_tokens.empty() && session.manifest.tail_sub_id != 0) {
    disk_.Erase(session.tail_id());
  }
  ReleaseStripes(session.manifest.stripe_keys, erase_stripes);
  book_.Remove(session);
}

absl::Status SessionKeeper::Delete(const SessionName& name) {
  const Digest key = disk::SessionKey(name.tenant, name.id);
  bool found = damaged_.erase(key) > 0;
  for (auto& [tag, save] : saves_) {
    if (!save.deleted && KeyOf(save.manifest) == key) {
      save.deleted = found = true;
    }
  }
  if (Session* const session = book_.Find(key); session != nullptr) {
    End(*session, SessionEnd::kDeleted, /*erase_stripes=*/true);
    found = true;
  }
  Publish();
  return found ? absl::OkStatus() : Lookup(name).status();
}

void SessionKeeper::EndExpired() {
  const uint64_t now = options_.wall_seconds();
  if (now == checked_s_) {
    return;
  }
  checked_s_ = now;
  std::vector<Session*> expired;
  book_.ForEach([&](Session& session) {
    if (session.manifest.Expired(now)) {
      expired.push_back(&session);
    }
  });
  for (Session* const session : expired) {
    End(*session, SessionEnd::kExpired, /*erase_stripes=*/false);
  }
}

// --- looking

absl::StatusOr<Session*> SessionKeeper::Lookup(const SessionName& name) {
  EndExpired();
  const Digest key = disk::SessionKey(name.tenant, name.id);
  if (Session* const session = book_.Find(key); session != nullptr) {
    return session;
  }
  if (damaged_.contains(key)) {
    return absl::DataLossError("the session's record is damaged");
  }
  if (foreign_.contains(key)) {
    return absl::FailedPreconditionError(
        "the session was saved with another model, or with other settings of its KV");
  }
  return absl::NotFoundError("no such session");
}

SessionInfo SessionKeeper::Describe(const Session& session) const {
  const disk::SessionManifest& manifest = session.manifest;
  SessionInfo info{.name = {manifest.tenant, manifest.id},
                   .num_tokens = session.num_tokens,
                   .num_stripes = manifest.stripe_keys.size(),
                   .tail_tokens = static_cast<uint32_t>(session.tail_tokens.size()),
                   .created_s = manifest.created_s,
                   .last_used_s = manifest.last_used_s,
                   .ttl_s = manifest.ttl_s,
                   .pinned = manifest.pinned};
  if (session.load.has_value()) {
    info.resident_tokens = loader_.NumSealed(*session.load) * kStripeTokens +
                           (loader_.TailData(*session.load) != nullptr ? info.tail_tokens : 0);
  }
  if (session.load.has_value() && loader_.IsDone(*session.load)) {
    info.state = SessionState::kResident;
  } else if (session.load.has_value() || session.fetching) {
    info.state = SessionState::kRestoring;
  }
  return info;
}

std::vector<SessionInfo> SessionKeeper::List(const std::optional<std::string>& tenant) {
  EndExpired();
  std::vector<const Session*> sessions;
  book_.ForEach([&](Session& session) {
    if (!tenant.has_value() || session.manifest.tenant == *tenant) {
      sessions.push_back(&session);
    }
  });
  std::ranges::sort(sessions, std::greater<>(), [](const Session* each) { return each->use; });
  std::vector<SessionInfo> infos;
  infos.reserve(sessions.size());
  for (const Session* const session : sessions) {
    infos.push_back(Describe(*session));
  }
  return infos;
}

absl::StatusOr<SessionInfo> SessionKeeper::Find(const SessionName& name) {
  SPINDLE_ASSIGN_OR_RETURN(const Session* const session, Lookup(name));
  return Describe(*session);
}

std::optional<SessionKeeper::Tail> SessionKeeper::FindTail(const Digest& parent,
                                                           std::span<const TokenId> rest) {
  EndExpired();
  const Session* const session = book_.FindTail(parent, rest);
  if (session == nullptr) {
    return std::nullopt;
  }
  return Tail{.tail = {session->manifest.tail_sub_id, session->tail_tokens},
              .num_usable = SharedTokens(session->tail_tokens, rest),
              .data = session->load.has_value() ? loader_.TailData(*session->load) : nullptr};
}

// --- restoring

absl::Status SessionKeeper::Fetch(Session& session, FetchPurpose purpose) {
  if (fetches_.size() + rewrites_.size() >= options_.max_pending) {
    return absl::UnavailableError(std::to_string(options_.max_pending) +
                                  " sessions are being read or changed");
  }
  const uint64_t tag = ++last_tag_ | kTagBit;
  const absl::StatusOr<disk::Ticket> ticket = disk_.SubmitFetch(ManifestId(session.key), tag);
  if (absl::IsNotFound(ticket.status())) {
    damaged_.insert(session.key);
    End(session, SessionEnd::kDamaged, /*erase_stripes=*/false);
    return absl::DataLossError("the session's record is gone");
  }
  if (!ticket.ok()) {
    return absl::UnavailableError(ticket.status().message());
  }
  fetches_.emplace(tag, PendingFetch{session.key, purpose});
  return absl::OkStatus();
}

uint64_t SessionKeeper::StripesHeld() {
  uint64_t held = 0;
  book_.ForEach([&](Session& session) {
    if (session.load.has_value()) {
      held += loader_.StripesHeld(*session.load);
    } else if (session.fetching) {
      held += session.manifest.stripe_keys.size() + 1;
    }
  });
  return held;
}

absl::Status SessionKeeper::Restore(const SessionName& name) {
  SPINDLE_ASSIGN_OR_RETURN(Session* const session, Lookup(name));
  if (session->load.has_value() || session->fetching) {
    return absl::OkStatus();
  }
  const uint64_t wanted = session->manifest.stripe_keys.size() + 1;
  const uint64_t limit = host_.Stats().capacity_stripes / kHostShareInverse;
  const uint64_t held = StripesHeld();
  if (held + wanted > limit) {
    const uint64_t stripe_bytes = host_.geometry().stripe_bytes();
    return absl::ResourceExhaustedError(
        "restoring the session takes " + std::to_string(wanted * stripe_bytes) +
        " bytes of host memory; restored sessions may hold " +
        std::to_string(limit * stripe_bytes) + ", and hold " + std::to_string(held * stripe_bytes));
  }
  SPINDLE_RETURN_IF_ERROR(Fetch(*session, FetchPurpose::kRestore));
  session->fetching = true;
  return absl::OkStatus();
}

absl::Status SessionKeeper::SetPinned(const SessionName& name, bool pinned) {
  SPINDLE_ASSIGN_OR_RETURN(Session* const session, Lookup(name));
  SPINDLE_RETURN_IF_ERROR(Fetch(*session, pinned ? FetchPurpose::kPin : FetchPurpose::kUnpin));
  session->manifest.pinned = pinned;
  session->manifest.last_used_s = options_.wall_seconds();
  return absl::OkStatus();
}

void SessionKeeper::OnFetched(const PendingFetch& fetch, const disk::Completion& completion) {
  Session* const session = book_.Find(fetch.key);
  if (session == nullptr) {
    return;  // it has ended meanwhile
  }
  const bool restores = fetch.purpose == FetchPurpose::kRestore;
  session->fetching = session->fetching && !restores;
  absl::StatusOr<disk::SessionManifest> manifest =
      completion.status.ok() ? disk::DecodeSession(completion.payload)
                             : absl::StatusOr<disk::SessionManifest>(completion.status);
  if (!manifest.ok()) {
    counters_.restores_failed += restores ? 1 : 0;
    if (absl::IsDataLoss(manifest.status())) {
      damaged_.insert(fetch.key);
      log::Warn("kv_session_damaged", {{"error", std::string(manifest.status().message())}});
      End(*session, SessionEnd::kDamaged, /*erase_stripes=*/false);
    }
    return;
  }
  if (manifest->stripe_keys != session->manifest.stripe_keys ||
      manifest->tokens.size() != session->num_tokens) {
    counters_.restores_failed += restores ? 1 : 0;
    return;  // it was replaced meanwhile
  }
  if (restores) {
    session->manifest.last_used_s = options_.wall_seconds();
    book_.Touch(*session);
    BeginRestore(*session, *manifest);
  }
  manifest->last_used_s = session->manifest.last_used_s;
  manifest->pinned = session->manifest.pinned;
  Rewrite(fetch.key, *manifest);
}

// If this fails, the session is as before after the next start.
void SessionKeeper::Rewrite(const Digest& key, const disk::SessionManifest& manifest) {
  const bool replaced = std::ranges::any_of(
      saves_, [&key](const auto& item) { return KeyOf(item.second.manifest) == key; });
  const uint64_t tag = ++last_tag_ | kTagBit;
  // A save that is under way must not be overwritten by what was before.
  if (!replaced &&
      disk_.SubmitPut(ManifestId(key), EncodeSession(manifest), disk::Ack::kWritten, tag).ok()) {
    rewrites_.emplace(tag, key);
  }
}

void SessionKeeper::BeginRestore(Session& session, const disk::SessionManifest& manifest) {
  const std::span<const Digest> keys = manifest.stripe_keys;
  StripeLoader::Request request{.chain = {keys, manifest.tokens, manifest.root}};
  request.num_host = host_.MatchPrefix(keys);
  uint32_t end = request.num_host;
  while (end < keys.size() && disk_.Contains(StripeRecordId(keys[end]))) {
    ++end;
  }
  request.num_disk = end - request.num_host;
  if (end == keys.size() && !session.tail_tokens.empty()) {
    request.tail = OpenTail{manifest.tail_sub_id, session.tail_tokens};
  }
  const absl::StatusOr<LoadId> load = loader_.Begin(request);
  if (!load.ok()) {
    ++counters_.restores_failed;
    return;
  }
  session.load = *load;
  session.restore_counted = false;
  restored_.push_back(&session);
}

bool SessionKeeper::ReleaseHost() {
  const bool any = !restored_.empty();
  for (Session* const session : restored_) {
    loader_.End(*session->load);
    session->load.reset();
  }
  restored_.clear();
  return any;
}

// --- the device

void SessionKeeper::Deliver(const disk::Completion& completion) {
  if (completion.op == disk::Completion::Op::kFetch) {
    if (const auto node = fetches_.extract(completion.tag); !node.empty()) {
      OnFetched(node.mapped(), completion);
    }
    return;
  }
  if (const auto rewrite = rewrites_.extract(completion.tag); !rewrite.empty()) {
    if (book_.Find(rewrite.mapped()) == nullptr) {
      disk_.Erase(ManifestId(rewrite.mapped()));  // it ended while it was written
    }
    return;
  }
  auto node = saves_.extract(completion.tag);
  SPINDLE_CHECK(!node.empty());
  if (completion.status.ok()) {
    Install(std::move(node.mapped()));
  } else {
    Abandon(node.mapped());
  }
}

void SessionKeeper::Advance() {
  EndExpired();
  std::vector<uint64_t> refused;
  for (const auto& [tag, save] : saves_) {
    if (save.written && !save.submitted) {
      refused.push_back(tag);
    }
  }
  for (const uint64_t tag : refused) {
    PutManifest(tag);
  }
  for (Session* const session : restored_) {
    if (session->restore_counted || !loader_.IsDone(*session->load)) {
      continue;
    }
    session->restore_counted = true;
    const bool complete = Describe(*session).resident_tokens == session->num_tokens;
    ++(complete ? counters_.restores_complete : counters_.restores_partial);
  }
  Publish();
}

void SessionKeeper::Publish() {
  counters_.sessions = book_.size();
  counters_.resident = restored_.size();
  counters_.retained_bytes = disk_.RetainedBytes();
}

SessionStats SessionKeeper::Stats() const {
  SessionStats stats{.sessions = counters_.sessions.load(),
                     .resident = counters_.resident.load(),
                     .retained_bytes = counters_.retained_bytes.load(),
                     .saves_complete = counters_.saves_complete.load(),
                     .saves_partial = counters_.saves_partial.load(),
                     .saves_failed = counters_.saves_failed.load(),
                     .restores_complete = counters_.restores_complete.load(),
                     .restores_partial = counters_.restores_partial.load(),
                     .restores_failed = counters_.restores_failed.load()};
  for (size_t i = 0; i < kNumSessionEnds; ++i) {
    stats.ended[i] = counters_.ended[i].load();
  }
  return stats;
}

}  // namespace spindle::kv
