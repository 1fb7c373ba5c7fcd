// Writes stripes of the prefix cache to disk, once they are worth it: those of long prefixes at
// once, others from their second use on. A store pins its prefix by a sequence of the host tier
// until the device has read it (tiered-KV specification 8.5; design 8.18).
//
// Thread-safety: engine-thread only, except the counters. Borrows both stores.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "base/ids.h"
#include "kv/disk/disk_store.h"
#include "kv/kv_store.h"
#include "kv/prefix_chain.h"
#include "kv/reuse_gate.h"

namespace spindle::kv {

class StripeWriter {
 public:
  struct Options {
    uint32_t min_tokens_at_once;
    uint32_t max_waiting;
  };

  struct Counters {
    std::atomic<uint64_t> gated{0};    // offers that were not worth it
    std::atomic<uint64_t> dropped{0};  // for want of room
  };

  StripeWriter(const Options& options, KvStore& host, disk::DiskStore& disk);
  ~StripeWriter();
  StripeWriter(const StripeWriter&) = delete;
  StripeWriter& operator=(const StripeWriter&) = delete;

  // See DiskTier.
  void CountUse(const PrefixChain& prompt);
  void Offer(const PrefixChain& chain);

  // A completion of the device.
  void Deliver(const disk::Completion& completion);

  // Gives the device more to do.
  void Advance();

  // Lets go of all that the device has not begun with.
  void DropWaiting();

  [[nodiscard]] bool HoldsStripes() const;

  [[nodiscard]] const Counters& counters() const { return counters_; }

  // kInternal naming the first broken invariant.
  [[nodiscard]] absl::Status CheckIntegrity() const;

 private:
  struct Store {
    bool active = false;
    SequenceId sequence;  // pins the stripes
    OwnedChain chain;
    uint32_t next = 0;
    uint32_t end = 0;
    uint32_t in_flight = 0;
  };

  [[nodiscard]] bool WorthStoring(const PrefixChain& chain, uint32_t ordinal) const;
  // The place of a vacant store, or `max_waiting`.
  uint32_t Vacant();
  void Submit(uint32_t place);
  void Drop(Store& store);
  void FinishIfWritten(Store& store);

  const Options options_;
  KvStore& host_;
  disk::DiskStore& disk_;
  ReuseGate gate_;
  std::deque<Store> stores_;  // places are used again
  Counters counters_;
};

}  // namespace spindle::kv
