// The disk tier: sealed stripes, open tails, session manifests and blobs that survive the process.
// Loads go straight into memory of the caller and are verified (key, parent, tokens, checksums)
// before they are reported; whatever goes wrong is a miss, never wrong content.
//
// Thread-safety: engine-thread only, except Stats(), which is thread-safe. No call but Open, Flush,
// Collect and Close waits for the device.
//
// Contract of asynchronous requests: every accepted request gets exactly one *final* completion
// from Poll. Until then its memory (destination of a load, payload of a store) must stay valid and,
// for a store, unchanged. A load whose deadline passes while the device is at work first gets a
// *notice* (final = false, kDeadlineExceeded): give up on it, but do not reuse its memory before
// the final completion. Cancel does not release memory either: a load that has not begun completes
// with kCancelled at the next Poll, another one when the device is done with it. A failed or
// cancelled load leaves its destination with any content.
//
// When records count: a store completes when the record is written and can be loaded by this
// process (safe, because every load verifies what it reads); it survives a crash from the next
// group commit on (data synced, then journalled). Ack::kDurable completes only then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "kv/disk/aligned_buffer.h"
#include "kv/disk/disk_files.h"
#include "kv/disk/disk_format.h"
#include "kv/disk/disk_options.h"
#include "kv/disk/store_directory.h"

namespace spindle::kv::disk {

// One request; never reused by a store.
using Ticket = uint64_t;

// A stripe or tail, straight into `destination`.
struct LoadRequest {
  RecordId id;
  Digest parent{};                  // must be what was stored
  std::span<const TokenId> tokens;  // must be what was stored: 64, or 1 … 63 for a tail
  std::span<uint8_t> destination;   // one stripe, on a 4 KiB border
  TimePoint deadline = TimePoint::max();
  uint64_t tag = 0;  // comes back with the completion
};

enum class Ack : uint8_t { kWritten, kDurable };

// A stripe or tail. `payload` is read until the final completion.
struct StoreRequest {
  RecordId id;
  Digest parent{};
  MethodDigest method{};
  ContentChecksum checksum;  // XXH3-128 of the payload
  uint32_t ordinal = 0;      // of the stripe in its sequence
  uint32_t flags = 0;        // RecordFlags
  std::span<const TokenId> tokens;
  std::span<const uint8_t> payload;  // one stripe, on a 4 KiB border
  Ack ack = Ack::kWritten;
  uint64_t tag = 0;
};

struct Completion {
  enum class Op : uint8_t { kLoad, kStore, kFetch };

  Op op = Op::kLoad;
  bool final = true;
  Ticket ticket = 0;
  uint64_t tag = 0;
  // Loads and fetches: OK, kNotFound, kDataLoss (damaged; the record is dropped), kUnavailable
  // (device), kDeadlineExceeded, kCancelled. Stores: OK, kUnavailable, kResourceExhausted.
  absl::Status status;
  TimePoint finished_at{};  // when the device was done with it; valid when final
  // What the record's header says; valid when OK and op is not kStore.
  MethodDigest method{};
  ContentChecksum checksum;
  uint32_t ordinal = 0;
  uint32_t flags = 0;
  // kFetch and OK: the record's bytes, [payload.size()]; owned by `memory`.
  std::span<const uint8_t> payload;
  AlignedBuffer memory;
};

class DiskStore {
 public:
  // Opens or creates the store of `identity` below options.path and rebuilds its index (≤ 1 s per
  // million entries). Borrows `files` and `clock`. `wake` is called on any thread when completions
  // may be waiting; it must not block.
  // ERRORS: kInvalidArgument (options, geometry), kFailedPrecondition (another process has the
  // store open, named in the message), those of the file layer.
  static absl::StatusOr<std::unique_ptr<DiskStore>> Open(const DiskOptions& options,
                                                         const StoreIdentity& identity,
                                                         DiskFiles& files,
                                                         const Clock& clock,
                                                         std::function<void()> wake);
  // Close, if that has not happened.
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  // Whether a load of the record may succeed. Does not change recency.
  [[nodiscard]] bool Contains(const RecordId& id) const;

  // False while the tier is off (degraded or closed): every load is refused then.
  [[nodiscard]] bool TakesLoads() const;

  // Whether the record is stored or being stored, so that another store would be skipped.
  [[nodiscard]] bool ContainsOrStoring(const RecordId& id) const;

  // ERRORS, without a completion: kNotFound, kResourceExhausted (too many loads), kUnavailable
  // (degraded, closed, or the segment's file cannot be opened). REQUIRES: sizes and borders as in
  // LoadRequest.
  [[nodiscard]] absl::StatusOr<Ticket> SubmitLoad(const LoadRequest& request);

  // A session manifest or blob, into memory of its own. ERRORS: as SubmitLoad.
  [[nodiscard]] absl::StatusOr<Ticket> SubmitFetch(const RecordId& id, uint64_t tag);

  // A stored tail of the same id is replaced; a stripe that is there already is skipped.
  // ERRORS, without a completion: kAlreadyExists, kResourceExhausted (queue or space), kUnavailable
  // (degraded, closed). REQUIRES: sizes and borders as in StoreRequest.
  [[nodiscard]] absl::StatusOr<Ticket> SubmitStore(const StoreRequest& request);

  // A session manifest or blob, replacing one of the same id; `bytes` are copied.
  // ERRORS: as SubmitStore; kInvalidArgument (0 or more than 1 GiB of bytes).
  [[nodiscard]] absl::StatusOr<Ticket> SubmitPut(const RecordId& id,
                                                 std::span<const uint8_t> bytes,
                                                 Ack ack,
                                                 uint64_t tag);

  // Does nothing if the request is completed already, or is a store.
  void Cancel(Ticket ticket);

  // Moves up to out.size() completions into `out`, oldest first; returns how many.
  size_t Poll(std::span<Completion> out);

  // The record is not found any more; true if it was there. Running loads of it end as they would.
  bool Erase(const RecordId& id);

  // The stripe with this key is copied rather than dropped by the collector until Release was
  // called as often, whether it is there already or comes later. Lasts as long as this object.
  void Retain(const Digest& stripe_key);

  // True when nobody retains the stripe any more. REQUIRES: Retain was called more often.
  bool Release(const Digest& stripe_key);

  // Bytes that the stripes retained now take, or will take.
  [[nodiscard]] uint64_t RetainedBytes() const;

  // Marks a record as used, so that it is collected later.
  void Touch(const RecordId& id);

  // Calls `visit` for every record of a kind, for example to list sessions. Cost: O(entries).
  void ForEach(RecordKind kind, const std::function<void(const RecordId&)>& visit) const;

  // Work that time calls for: deadlines, group commit, checkpoint, collection, measuring space.
  // Call it every step; cheap when nothing is due.
  void Tick();

  // When Tick next has something to do, if nothing else happens.
  [[nodiscard]] std::optional<TimePoint> NextTick() const;

  // Blocks until everything submitted is completed and durable. Completions stay for Poll.
  // ERRORS: the first failed commit.
  [[nodiscard]] absl::Status Flush();

  // Drops segments until they have at most `target_bytes`, and every one of which 20 % or less is
  // live. Blocks. ERRORS: the first failed commit.
  [[nodiscard]] absl::Status Collect(uint64_t target_bytes);

  // Flush, a checkpoint, and the end: later requests are refused. ERRORS: as Flush.
  absl::Status Close();

  // As of the last Poll, Tick, Flush, Collect or Close.
  [[nodiscard]] DiskStats Stats() const;

  // What Open found.
  [[nodiscard]] const RecoveryReport& recovery() const;

  // The folder of this store.
  [[nodiscard]] const std::string& directory() const;

  // kInternal naming the first broken invariant: the index agrees with its totals, every entry lies
  // inside its segment, counters equal file sizes. Cost: O(entries). Reads file sizes.
  [[nodiscard]] absl::Status CheckIntegrity() const;

 private:
  class Impl;
  explicit DiskStore(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace spindle::kv::disk
