// Writes stripes of the prefix cache to disk, once they are worth it: those of long prefixes at
// once, others from their second use on. A store pins its prefix by a sequence of the host tier
// until the device has read it. A *save* is a store that somebody waits for: it writes whatever is
// missing, the open tail too, and says how far it came.
//
// Thread-safety: engine-thread only, except the counters. Borrows both stores.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
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

  // Table of the uses that decide what is written.
  static constexpr uint32_t kGatePlaces = uint32_t{1} << 16;
  static constexpr uint64_t kGateBytes = uint64_t{kGatePlaces} * ReuseGate::kPlaceBytes;

  struct Counters {
    std::atomic<uint64_t> gated{0};    // offers that were not worth it
    std::atomic<uint64_t> dropped{0};  // for want of room
  };

  struct SaveRequest {
    SequenceId sequence{};  // passes to the writer; its stripes of the chain are published
    OwnedChain chain{};
    std::optional<OpenTail> tail = std::nullopt;  // rows of the stripe behind them
    uint64_t tag = 0;                             // comes back with the result
  };

  struct SaveResult {
    uint64_t tag = 0;
    uint32_t num_stripes = 0;  // leading ones that are on disk now
    bool tail = false;         // the tail is, too
  };

  StripeWriter(const Options& options, KvStore& host, disk::DiskStore& disk, const Clock& clock);
  ~StripeWriter();
  StripeWriter(const StripeWriter&) = delete;
  StripeWriter& operator=(const StripeWriter&) = delete;

  // See DiskTier.
  void CountUse(const PrefixChain& prompt);
  void Offer(const PrefixChain& chain);

  // False when too many stores wait: then the sequence stays the caller's.
  [[nodiscard]] bool Save(SaveRequest&& request);

  // Moves the results of saves that have come to their end.
  [[nodiscard]] std::vector<SaveResult> TakeSaved();

  // A completion of the device.
  void Deliver(const disk::Completion& completion);

  // Gives the device more to do. What could not be handed to it for ten seconds is dropped.
  void Advance();

  // When to call again if the device stays silent: results are there, or something waits, but not
  // for the device.
  [[nodiscard]] std::optional<TimePoint> NextRetry() const;

  // Lets go of all that the device has not begun with. Saves go on unless they are stalled.
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
    std::optional<TimePoint> stalled_since;  // waits for space or the queue

    enum class Tail : uint8_t { kNone, kWaiting, kInFlight, kWritten };
    std::optional<uint64_t> save_tag;  // of a save
    uint32_t num_written = 0;          // of a save: leading stripes that did not fail
    uint32_t num_checked = 0;          // of these: on disk
    Tail tail_state = Tail::kNone;
    OpenTail tail;

    [[nodiscard]] bool waits() const { return next < end || tail_state == Tail::kWaiting; }
  };

  [[nodiscard]] bool WorthStoring(const PrefixChain& chain, uint32_t ordinal) const;
  // The place of a vacant store, or `max_waiting`.
  uint32_t Vacant();
  void Submit(uint32_t place);
  // True when the device took it, or has it already. False ends this round; then the store may
  // have been dropped.
  [[nodiscard]] bool SubmitStripe(uint32_t place, uint32_t ordinal);
  void SubmitTail(uint32_t place);
  // A request that the device did not take.
  void Refused(Store& store, const absl::Status& status);
  void Drop(Store& store);
  void FinishIfWritten(Store& store);
  // False while stripes of a save are still being written by other stores.
  [[nodiscard]] bool CheckWritten(Store& store);

  const Options options_;
  KvStore& host_;
  disk::DiskStore& disk_;
  const Clock& clock_;
  ReuseGate gate_;
  std::deque<Store> stores_;  // places are used again
  std::vector<SaveResult> saved_;
  Counters counters_;
};

}  // namespace spindle::kv
