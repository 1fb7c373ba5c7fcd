// Sessions over the disk tier (docs/http-api.md): saves what a request computed under a name,
// brings it back into the host tier when asked, forgets it when its time is over.
//
// Save: the writer stores the stripes that are missing and the open tail, then the manifest is
// made durable, and only then does the session exist (or replace the one before). Its stripes are
// retained: the collector copies them. Restore: the manifest is read, and a load holds the stripes
// in the host tier until the session is replaced, removed, or memory is wanted.
//
// Bounds: `max_sessions`, and `max_share` of the disk tier for all retained stripes together; the
// session used longest ago goes first, pinned ones never. A session that ends by itself (time,
// bounds) leaves its stripes to the ordinary cache; Delete erases those that no other session has.
//
// Sessions are found by tenant and id together, so that a tenant cannot see another's.
// Thread-safety: engine-thread only, except the counters. Borrows everything.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/ids.h"
#include "kv/disk/disk_store.h"
#include "kv/kv_store.h"
#include "kv/prefix_chain.h"
#include "kv/session_book.h"
#include "kv/stripe_loader.h"
#include "kv/stripe_writer.h"

namespace spindle::kv {

// Seconds since 1970.
[[nodiscard]] uint64_t SystemSeconds();

struct SessionOptions {
  uint32_t max_sessions = 4096;
  // Saves that are not durable yet; restores and changes that wait for a manifest. More are
  // refused.
  uint32_t max_pending = 64;
  double max_share = 0.75;  // of the disk tier's capacity
  std::function<uint64_t()> wall_seconds = SystemSeconds;
};

struct SessionName {
  std::string tenant{};
  std::string id{};
};

enum class SessionState : uint8_t {
  kDisk,
  kRestoring,
  kResident,  // restored: the host tier holds it
};

struct SessionInfo {
  SessionName name{};
  uint64_t num_tokens = 0;
  uint64_t num_stripes = 0;
  uint32_t tail_tokens = 0;      // of num_tokens: in the open tail
  uint64_t resident_tokens = 0;  // in the host tier because it was restored
  uint64_t created_s = 0;
  uint64_t last_used_s = 0;
  uint64_t ttl_s = 0;
  bool pinned = false;
  SessionState state = SessionState::kDisk;
};

// Why sessions end.
enum class SessionEnd : uint8_t { kDeleted, kExpired, kNumber, kSpace, kDamaged };
inline constexpr size_t kNumSessionEnds = 5;

struct SessionStats {
  uint64_t sessions = 0;
  uint64_t resident = 0;
  uint64_t retained_bytes = 0;
  uint64_t saves_complete = 0;
  uint64_t saves_partial = 0;  // only a leading part could be stored
  uint64_t saves_failed = 0;
  uint64_t restores_complete = 0;
  uint64_t restores_partial = 0;
  uint64_t restores_failed = 0;
  std::array<uint64_t, kNumSessionEnds> ended{};
};

class SessionKeeper {
 public:
  SessionKeeper(SessionOptions options,
                KvStore& host,
                disk::DiskStore& disk,
                StripeLoader& loader,
                StripeWriter& writer);

  // Reads the manifests of the store; blocks. `root`: its folder or one that it shares with the
  // stores of other models. ERRORS: those of DiskStore::Flush.
  [[nodiscard]] absl::Status Recover(disk::DiskFiles& files, const std::string& root);

  struct SaveRequest {
    SessionName name{};
    uint64_t ttl_s = 0;
    SequenceId sequence{};        // passes to the keeper if it accepts
    OwnedChain chain{};           // published stripes of the sequence
    std::vector<TokenId> tail{};  // of the rows behind them, at most 63
  };

  // False when too many saves or stores wait.
  [[nodiscard]] bool Save(SaveRequest&& request);

  // In order of their last use, newest first. Nothing as tenant: of all.
  [[nodiscard]] std::vector<SessionInfo> List(const std::optional<std::string>& tenant);

  // ERRORS of all of these: kNotFound; kFailedPrecondition (it belongs to another model, or to
  // this one with other settings); kDataLoss (its record is damaged).
  [[nodiscard]] absl::StatusOr<SessionInfo> Find(const SessionName& name);

  // Begins to bring it into the host tier. ERRORS: kResourceExhausted (restored sessions would hold
  // more than half of that tier), kUnavailable (the disk).
  [[nodiscard]] absl::Status Restore(const SessionName& name);

  // A pinned session ends by Delete only. ERRORS: kUnavailable (the disk).
  [[nodiscard]] absl::Status SetPinned(const SessionName& name, bool pinned);

  // Also ends a save of this name that is under way, and forgets that a record was damaged.
  [[nodiscard]] absl::Status Delete(const SessionName& name);

  struct Tail {
    OpenTail tail{};
    uint32_t num_usable = 0;        // leading tokens that the caller has as well
    const uint8_t* data = nullptr;  // one stripe, if it is in the host tier; until the next call
  };

  // The open tail behind a stripe (or a root) that shares most tokens with `rest`.
  [[nodiscard]] std::optional<Tail> FindTail(const Digest& parent, std::span<const TokenId> rest);

  // --- from DiskTier
  // A save of the writer, tagged by the keeper, has come to its end.
  void OnSaved(const StripeWriter::SaveResult& result);
  // A completion of the device, tagged by the keeper.
  void Deliver(const disk::Completion& completion);
  // Ends what has expired, counts restores that are done.
  void Advance();
  // Lets go of restored sessions; false if there were none.
  bool ReleaseHost();

  // Saves are under way.
  [[nodiscard]] bool saving() const { return !saves_.empty(); }

  [[nodiscard]] SessionStats Stats() const;

  // Tags of the keeper have this bit.
  static constexpr uint64_t kTagBit = uint64_t{1} << 63;

 private:
  struct PendingSave {
    disk::SessionManifest manifest;
    bool written = false;    // but for the manifest
    bool submitted = false;  // the manifest too
    bool partial = false;
    bool deleted = false;
  };

  enum class FetchPurpose : uint8_t { kRestore, kPin, kUnpin };

  struct PendingFetch {
    Digest key;
    FetchPurpose purpose;
  };

  [[nodiscard]] absl::StatusOr<Session*> Lookup(const SessionName& name);
  [[nodiscard]] absl::Status Fetch(Session& session, FetchPurpose purpose);
  void OnFetched(const PendingFetch& fetch, const disk::Completion& completion);
  void BeginRestore(Session& session, const disk::SessionManifest& manifest);
  void Rewrite(const Digest& key, const disk::SessionManifest& manifest);
  void PutManifest(uint64_t tag);
  void Install(PendingSave&& save);
  void Abandon(const PendingSave& save);
  // Out of the book; `erase_stripes` as Delete does.
  void End(Session& session, SessionEnd cause, bool erase_stripes);
  void Detach(Session& session, bool erase_stripes);
  void ReleaseStripes(std::span<const Digest> keys, bool erase);
  void EndExpired();
  void EnforceBounds();
  [[nodiscard]] uint64_t StripesHeld();
  [[nodiscard]] SessionInfo Describe(const Session& session) const;
  absl::StatusOr<std::vector<Session>> ReadManifests();
  void TakeManifest(const disk::RecordId& id,
                    const disk::Completion& completion,
                    std::vector<Session>* sessions);
  void FindForeign(disk::DiskFiles& files, const std::string& root);
  void EraseOrphanTails();
  void Publish();

  const SessionOptions options_;
  KvStore& host_;
  disk::DiskStore& disk_;
  StripeLoader& loader_;
  StripeWriter& writer_;

  SessionBook book_;
  uint64_t last_tag_ = 0;
  std::unordered_map<uint64_t, PendingSave> saves_;  // by tag
  std::unordered_map<uint64_t, PendingFetch> fetches_;
  std::unordered_map<uint64_t, Digest> rewrites_;  // keys of manifests that are written again
  std::vector<Session*> restored_;                 // those with a load
  std::unordered_set<Digest, disk::DigestHash> damaged_;  // keys whose manifest cannot be read
  std::unordered_set<Digest, disk::DigestHash> foreign_;  // keys in stores of other models
  uint64_t checked_s_ = 0;                                // when EndExpired last looked

  struct Counters {
    std::atomic<uint64_t> sessions{0};
    std::atomic<uint64_t> resident{0};
    std::atomic<uint64_t> retained_bytes{0};
    std::atomic<uint64_t> saves_complete{0};
    std::atomic<uint64_t> saves_partial{0};
    std::atomic<uint64_t> saves_failed{0};
    std::atomic<uint64_t> restores_complete{0};
    std::atomic<uint64_t> restores_partial{0};
    std::atomic<uint64_t> restores_failed{0};
    std::array<std::atomic<uint64_t>, kNumSessionEnds> ended{};
  };

  Counters counters_;
};

}  // namespace spindle::kv
