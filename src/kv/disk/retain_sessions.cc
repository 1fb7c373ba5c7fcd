#include "kv/disk/retain_sessions.h"

#include <array>
#include <vector>

#include "base/status_macros.h"
#include "kv/disk/session_record.h"

namespace spindle::kv::disk {
namespace {

absl::StatusOr<SessionManifest> ReadManifest(DiskStore& store, const RecordId& id) {
  SPINDLE_RETURN_IF_ERROR(store.SubmitFetch(id, 0).status());
  std::array<Completion, 1> done;
  while (store.Poll(done) == 0) {
    store.Tick();
  }
  SPINDLE_RETURN_IF_ERROR(done[0].status);
  return DecodeSession(done[0].payload);
}

}  // namespace

absl::StatusOr<SessionRetention> RetainSessions(DiskStore& store, uint64_t now_s) {
  std::vector<RecordId> ids;
  store.ForEach(RecordKind::kSession, [&ids](const RecordId& id) { ids.push_back(id); });
  SessionRetention found;
  for (const RecordId& id : ids) {
    const absl::StatusOr<SessionManifest> manifest = ReadManifest(store, id);
    if (absl::IsDataLoss(manifest.status()) || absl::IsNotFound(manifest.status())) {
      ++found.damaged;
      continue;
    }
    SPINDLE_RETURN_IF_ERROR(manifest.status());
    if (manifest->Expired(now_s)) {
      ++found.ended;
      continue;
    }
    ++found.sessions;
    for (const Digest& key : manifest->stripe_keys) {
      store.Retain(key);
    }
  }
  return found;
}

}  // namespace spindle::kv::disk
