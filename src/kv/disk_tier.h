// The prefix cache's third tier: brings stripes back from disk for waiting requests, and writes to
// disk what was computed. Sits between the host tier (KvStore) and the record store
// (disk/disk_store.h), and moves nothing while a forward pass runs.
//
// Loads: stripe_loader.h. Stores: stripe_writer.h. Sessions: session_keeper.h.
//
// Thread-safety: engine-thread only, except Stats() and OnWake(). Borrows the host tier.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "kv/disk/disk_options.h"
#include "kv/disk/disk_store.h"
#include "kv/kv_store.h"
#include "kv/prefix_chain.h"
#include "kv/session_keeper.h"
#include "kv/stripe_loader.h"
#include "kv/stripe_writer.h"

namespace spindle::kv {

struct DiskTierOptions {
  // Prefixes shorter than this are written only when they are used again.
  uint32_t min_tokens_to_store_at_once = 1024;
  // Shorter remainders are computed, not loaded.
  uint32_t min_tokens_to_load = 128;
  // Prefixes that wait to be written; more are dropped and counted. Each pins its stripes.
  uint32_t max_waiting_stores = 64;
  // Preempted sequences are not written when more than this waits to be.
  uint64_t max_spill_bytes = uint64_t{128} << 20;
  SessionOptions sessions = {};
};

// What a preempted sequence left on disk.
using SpillId = StrongId<struct SpillIdTag, uint64_t>;

struct DiskTierStats {
  disk::DiskStats disk;
  uint64_t loads = 0;                // begun for requests
  uint64_t loads_cut = 0;            // ended by their deadline or a damaged record
  uint64_t loaded_tokens = 0;        // that entered the prefix cache
  uint64_t lost_tokens = 0;          // that cut loads did not bring
  uint64_t stores_gated = 0;         // prefixes not written because they came once only
  uint64_t stores_dropped = 0;       // prefixes not written for want of room
  double load_bytes_per_second = 0;  // moving average, 0 before the first load
  uint64_t tail_tokens = 0;          // rows of open tails that requests used
  uint64_t spills = 0;               // sequences of preempted requests that were written
  uint64_t spilled_stripes = 0;      // tails included
  SessionStats sessions{};
};

class DiskTier {
 public:
  // ERRORS: those of disk::DiskStore::Open.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(const DiskTierOptions& options,
                                                        const disk::DiskOptions& disk_options,
                                                        const disk::StoreIdentity& identity,
                                                        disk::DiskFiles& files,
                                                        const Clock& clock,
                                                        KvStore& host);
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  // `wake` is called on any thread when Advance has something to do. Replaces the one before;
  // nothing calls that one afterwards.
  void OnWake(std::function<void()> wake);

  // Stripes of `keys` behind the first `num_host` that the disk may hold, without a gap. None while
  // the disk is off.
  [[nodiscard]] uint32_t MatchDisk(std::span<const Digest> keys, uint32_t num_host) const;

  // Whether a load brings this stripe in.
  [[nodiscard]] bool IsLoading(const Digest& key) const;

  // True when loading `num_stripes` is expected to be clearly quicker than computing them.
  [[nodiscard]] bool WorthLoading(uint32_t num_stripes, double prefill_tokens_per_second) const;

  // The same for the rows of an open tail.
  [[nodiscard]] bool WorthLoadingTail(uint32_t num_tokens, double prefill_tokens_per_second) const;

  // Begins to load stripes [num_host, num_host + num_disk) of the chain into the host tier, behind
  // the `num_host` that it has (MatchPrefix), and then the open tail if there is one. Gives up on
  // its own after a deadline that follows from measured rates. ERRORS: kResourceExhausted (no room
  // in the host tier; nothing changed).
  [[nodiscard]] absl::StatusOr<LoadId> BeginLoad(const StripeLoader::Request& request);

  // Nothing more will come: all stripes are there, or the rest must be computed.
  [[nodiscard]] bool IsDone(LoadId load) const;

  // See StripeLoader.
  [[nodiscard]] const uint8_t* TailData(LoadId load) const { return loader_.TailData(load); }

  [[nodiscard]] uint32_t NumSealed(LoadId load) const { return loader_.NumSealed(load); }

  [[nodiscard]] std::span<const TokenId> TailTokens(LoadId load) const {
    return loader_.TailTokens(load);
  }

  // Stripes of the host tier that the load keeps from being evicted.
  [[nodiscard]] uint32_t StripesHeld(LoadId load) const;

  [[nodiscard]] StripeLoader::Info InfoOf(LoadId load) const { return loader_.InfoOf(load); }

  // The request has started, or does not want the load any more. What has arrived stays cached.
  void EndLoad(LoadId load);

  // A prompt was computed or found: counts a use of its stripes, which decides what is written.
  void CountUse(const PrefixChain& prompt);

  // Writes the cached stripes of a prefix that are not on disk, as far as they are worth it: those
  // of long prefixes at once, others from their second use on.
  void Offer(const PrefixChain& chain);

  // Writes all of a sequence that gives up its memory; see StripeWriter::Save. The request's tag
  // is not used. Nothing, and the sequence stays the caller's, when the tier cannot take it now.
  [[nodiscard]] std::optional<SpillId> Spill(StripeWriter::SaveRequest&& request);

  // The spilled open tail once it is on disk, else null. Until EndSpill.
  [[nodiscard]] const OpenTail* SpilledTail(SpillId spill) const;

  // The tail's record is not needed any more.
  void EndSpill(SpillId spill);

  [[nodiscard]] SessionKeeper& sessions() { return sessions_; }

  [[nodiscard]] const KvStore& host() const { return host_; }

  // Rows of an open tail were used for a request.
  void CountTailTokens(uint32_t num_tokens) { tail_tokens_ += num_tokens; }

  // Delivers what the device has done, and gives it more to do. Call it before every step.
  void Advance();

  // When Advance next has something to do, if the device stays silent.
  [[nodiscard]] std::optional<TimePoint> NextAdvance() const;

  // Lets go of host stripes that only waiting stores and restored sessions hold; those that the
  // device is reading follow when it is done.
  void ReleaseHostStripes();

  // Whether loads or stores own stripes of the host tier.
  [[nodiscard]] bool HoldsHostStripes() const;

  // Blocks until everything handed to the device is durable, and saves that were begun have come to
  // their end; then refuses more.
  // ERRORS: the first failed commit.
  absl::Status Close();

  [[nodiscard]] DiskTierStats Stats() const;

  // kInternal naming the first broken invariant, here and in the record store.
  [[nodiscard]] absl::Status CheckIntegrity() const;

 private:
  // Calls the engine from the device's threads.
  class Waker {
   public:
    void Set(std::function<void()> wake);
    void Wake();

   private:
    Mutex mutex_;
    std::function<void()> wake_ SPINDLE_GUARDED_BY(mutex_);
  };

  DiskTier(const DiskTierOptions& options,
           std::unique_ptr<Waker> waker,
           std::unique_ptr<disk::DiskStore> disk,
           const Clock& clock,
           KvStore& host);
  void DeliverAll();
  void TakeSaved();

  struct SpillState {
    Digest parent{};  // of the tail
    OpenTail tail{};
    bool written = false;    // the save has come to its end
    bool has_tail = false;   // and the tail is on disk
    bool abandoned = false;  // by the caller, before that
  };

  const DiskTierOptions options_;
  KvStore& host_;
  // Outlives the device's threads, which call it.
  const std::unique_ptr<Waker> waker_;
  const std::unique_ptr<disk::DiskStore> disk_;
  StripeLoader loader_;
  StripeWriter writer_;
  SessionKeeper sessions_;
  std::unordered_map<uint64_t, SpillState> spills_;
  uint64_t num_spills_ = 0;
  std::atomic<uint64_t> tail_tokens_{0};
  std::atomic<uint64_t> spills_written_{0};
  std::atomic<uint64_t> spilled_stripes_{0};
};

}  // namespace spindle::kv
