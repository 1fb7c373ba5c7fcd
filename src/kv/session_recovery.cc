// What a restart finds of sessions.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "kv/disk/store_directory.h"
#include "kv/session_keeper.h"

namespace spindle::kv {

absl::Status SessionKeeper::Recover(disk::DiskFiles& files, const std::string& root) {
  SPINDLE_ASSIGN_OR_RETURN(std::vector<Session> sessions, ReadManifests());
  // Those used last come last, as the book wants them.
  std::ranges::sort(
      sessions, {}, [](const Session& session) { return session.manifest.last_used_s; });
  for (Session& session : sessions) {
    for (const Digest& stripe : session.manifest.stripe_keys) {
      disk_.Retain(stripe);
    }
    book_.Add(std::move(session));
  }
  EndExpired();
  EnforceBounds();
  EraseOrphanTails();
  FindForeign(files, root);
  Publish();
  return disk_.Flush();
}

// Manifests hold all tokens of their sessions, so only a few are in memory at a time.
absl::StatusOr<std::vector<Session>> SessionKeeper::ReadManifests() {
  const size_t batch_size = options_.max_pending;
  std::vector<disk::RecordId> ids;
  disk_.ForEach(disk::RecordKind::kSession,
                [&ids](const disk::RecordId& id) { ids.push_back(id); });
  std::vector<Session> sessions;
  for (size_t begin = 0; begin < ids.size(); begin += batch_size) {
    const size_t end = std::min(ids.size(), begin + batch_size);
    for (size_t i = begin; i < end; ++i) {
      if (!disk_.SubmitFetch(ids[i], i).ok()) {
        damaged_.insert(ids[i].key);
      }
    }
    SPINDLE_RETURN_IF_ERROR(disk_.Flush());
    std::array<disk::Completion, 16> completions;
    while (const size_t count = disk_.Poll(completions)) {
      for (const disk::Completion& completion : std::span(completions).first(count)) {
        TakeManifest(ids[completion.tag], completion, &sessions);
      }
    }
  }
  return sessions;
}

void SessionKeeper::TakeManifest(const disk::RecordId& id,
                                 const disk::Completion& completion,
                                 std::vector<Session>* sessions) {
  absl::Status status = completion.status;
  if (status.ok()) {
    absl::StatusOr<disk::SessionManifest> manifest = disk::DecodeSession(completion.payload);
    if (manifest.ok() && KeyOf(*manifest) == id.key) {
      sessions->push_back(MakeSession(*std::move(manifest)));
      return;
    }
    status = absl::DataLossError("the manifest is not what its key says");
  }
  log::Warn("kv_session_damaged", {{"error", std::string(status.message())}});
  damaged_.insert(id.key);
  if (absl::IsDataLoss(status)) {
    disk_.Erase(id);  // a device that fails may work next time
  }
  ++counters_.ended[static_cast<size_t>(SessionEnd::kDamaged)];
}

// A crash may leave tails whose manifest was never written, or was replaced.
void SessionKeeper::EraseOrphanTails() {
  std::vector<disk::RecordId> orphans;
  disk_.ForEach(disk::RecordKind::kOpenTail,
                [&orphans](const disk::RecordId& id) { orphans.push_back(id); });
  std::erase_if(orphans, [this](const disk::RecordId& id) { return book_.OwnsTail(id); });
  for (const disk::RecordId& id : orphans) {
    disk_.Erase(id);
  }
}

void SessionKeeper::FindForeign(disk::DiskFiles& files, const std::string& root) {
  const auto stores = disk::FindStores(files, root);
  if (!stores.ok()) {
    return;
  }
  for (const disk::FoundStore& store : *stores) {
    if (!store.superblock.ok() || store.directory == disk_.directory()) {
      continue;
    }
    const auto listing = disk::ListStore(files, store.directory);
    disk::DiskIndex index;
    if (!listing.ok() ||
        !disk::RecoverIndex(files, store.directory, *listing, store.superblock->uuid, &index)
             .ok()) {
      continue;  // another server changes it; its sessions are unknown here
    }
    index.Scan(0, disk::kNoEntry, [&](disk::EntryIdx entry) {
      if (index.Get(entry).kind == disk::RecordKind::kSession) {
        foreign_.insert(index.Get(entry).key);
      }
    });
  }
}

}  // namespace spindle::kv
