// The prefix cache's third tier: brings stripes back from disk for waiting requests, and writes to
// disk what was computed. Sits between the host tier (KvStore) and the record store
// (disk/disk_store.h), and moves nothing while a forward pass runs.
//
// Loads: stripe_loader.h. Stores: stripe_writer.h.
//
// Thread-safety: engine-thread only, except Stats() and OnWake(). Borrows the host tier.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

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
};

struct DiskTierStats {
  disk::DiskStats disk;
  uint64_t loads = 0;                // begun for requests
  uint64_t loads_cut = 0;            // ended by their deadline or a damaged record
  uint64_t loaded_tokens = 0;        // that entered the prefix cache
  uint64_t stores_gated = 0;         // prefixes not written because they came once only
  uint64_t stores_dropped = 0;       // prefixes not written for want of room
  double load_bytes_per_second = 0;  // moving average, 0 before the first load
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

  // Stripes of `keys` behind the first `num_host` that the disk may hold, without a gap.
  [[nodiscard]] uint32_t MatchDisk(std::span<const Digest> keys, uint32_t num_host) const;

  // Whether a load brings this stripe in.
  [[nodiscard]] bool IsLoading(const Digest& key) const;

  // True when loading `num_stripes` is expected to be clearly quicker than computing them.
  [[nodiscard]] bool WorthLoading(uint32_t num_stripes, double prefill_tokens_per_second) const;

  // Begins to load stripes [num_host, num_host + num_disk) of the chain into the host tier, behind
  // the `num_host` that it has (MatchPrefix). Gives up on its own after a deadline that follows
  // from measured rates. ERRORS: kResourceExhausted (no room in the host tier; nothing changed).
  [[nodiscard]] absl::StatusOr<LoadId> BeginLoad(BudgetGroupId group,
                                                 const PrefixChain& chain,
                                                 uint32_t num_host,
                                                 uint32_t num_disk,
                                                 double prefill_tokens_per_second);

  // Nothing more will come: all stripes are there, or the rest must be computed.
  [[nodiscard]] bool IsDone(LoadId load) const;

  // Stripes of the host tier that the load keeps from being evicted.
  [[nodiscard]] uint32_t StripesHeld(LoadId load) const;

  // The request has started, or does not want the load any more. What has arrived stays cached.
  void EndLoad(LoadId load);

  // A prompt was computed or found: counts a use of its stripes, which decides what is written.
  void CountUse(const PrefixChain& prompt);

  // Writes the cached stripes of a prefix that are not on disk, as far as they are worth it: those
  // of long prefixes at once, others from their second use on.
  void Offer(const PrefixChain& chain);

  // Delivers what the device has done, and gives it more to do. Call it before every step.
  void Advance();

  // When Advance next has something to do, if the device stays silent.
  [[nodiscard]] std::optional<TimePoint> NextAdvance() const;

  // Lets go of host stripes that only waiting stores hold; those that the device is reading follow
  // when it is done.
  void ReleaseHostStripes() { writer_.DropWaiting(); }

  // Whether loads or stores own stripes of the host tier.
  [[nodiscard]] bool HoldsHostStripes() const;

  // Blocks until everything handed to the device is durable, then refuses more.
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

  const DiskTierOptions options_;
  // Outlives the device's threads, which call it.
  const std::unique_ptr<Waker> waker_;
  const std::unique_ptr<disk::DiskStore> disk_;
  StripeLoader loader_;
  StripeWriter writer_;
};

}  // namespace spindle::kv
